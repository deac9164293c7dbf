"""Facts for rules: the choices of a config, and the declarations of their classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

from blockyard.config.choices.catalog import OF_SOURCE, SAME
from blockyard.contracts import ChoiceOptions, DataSpec, TokenSpec, Traits


@dataclass(frozen=True)
class Pick:
    """The choice of one family: its name, class and options."""

    family: str
    name: str
    target: type[Any]
    options: ChoiceOptions

    of_source: bool = False  # it stands for the source of a data set

    def __str__(self) -> str:
        choice = f"{self.family}={self.name}"
        if self.of_source:
            return f"the source of {choice}"
        return choice


def _mixers(name: str, target: type[Any], options: ChoiceOptions) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield a token mixer, or the mixers that it is made of."""
    members = options.get("members")
    if not isinstance(members, Mapping) or not members:
        yield name, target, options
        return
    for member_name, member in members.items():
        yield from _mixers(f"token_mixer={member_name}", member.func, member.keywords)


@dataclass
class Facts:
    """The choices of a config, and facts that follow from several of them.

    spec: of the source, where these are the choices for it; None where they are for the data
    differing: where these are the choices of a kind of layers, the families with a node of the kind's own
    carried: values that layers of any kind give to later layers
    """

    picks: dict[str, Pick]
    spec: DataSpec | None = None
    differing: frozenset[str] = frozenset()
    carried: frozenset[str] = frozenset()

    def swapped(self, pick: Pick) -> Facts:
        """Return these choices with one replaced."""
        differing = self.differing
        if differing:  # the choices of a kind of layers; those of all layers differ in nothing
            differing |= {pick.family}
        return Facts({**self.picks, pick.family: pick}, differing=differing, carried=self.carried)

    def only(self, families: Collection[str]) -> Facts:
        """Return the choices of these families alone."""
        return Facts({family: pick for family, pick in self.picks.items() if family in families}, self.spec)

    def __getitem__(self, family: str) -> Pick:
        if family in OF_SOURCE and family not in self.picks:
            return replace(self.picks[OF_SOURCE[family]], family=family, name=SAME)
        return self.picks[family]

    @property
    def reads_source(self) -> bool:
        """True where the source is the only sequence that the model reads."""
        return "objective" in self.picks and self["objective"].target.reads == "source"

    @cached_property
    def source(self) -> Facts | None:
        """The choices that read the source, with an encoder over it; None where the model reads no source."""
        spec = self.data.source
        if spec is None or not (self.reads_source or self["model"].target.takes_source):
            return None
        picks = dict(self.picks)
        for key, family in OF_SOURCE.items():
            if family in self.picks:
                picks[family] = self[key]
        if self.reads_source and "position" in self.picks:
            picks["position"] = self["position"]
        picks["data"] = replace(self["data"], of_source=True)
        facts = Facts(picks, spec)
        if self["model"].target.joins:  # mixers, heads and norms see the joined sequence, as the rules about it say
            return facts.only(("data", "tokenizer", "position"))
        return facts

    @property
    def read(self) -> Facts:
        """These choices as they meet the sequence that the head predicts from."""
        if not self.reads_source:
            return self
        return self.source or self

    @cached_property
    def data(self) -> DataSpec:
        """The spec of the data."""
        if self.spec is not None:
            return self.spec
        spec: DataSpec = self["data"].target(**self["data"].options).spec
        return spec

    @cached_property
    def tokens(self) -> TokenSpec:
        """The tokens that the tokenizer makes of the data, as the objective, where there is one, changes them."""
        tokens: TokenSpec = self["tokenizer"].target(**self["tokenizer"].options).spec(self.data)
        objective = self.picks.get("objective")
        if objective is None or self.spec is not None:  # an objective changes the data's own sequence alone
            return tokens
        return objective.target(**objective.options).tokens(tokens)

    @property
    def traits(self) -> Traits:
        """The traits of the token mixer under its options."""
        traits: Traits = self["token_mixer"].target.traits_for(self["token_mixer"].options)
        return traits

    def mixers(self) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        """Yield the token mixers that do the work, also inside cycle and beside: name, class and options."""
        pick = self["token_mixer"]
        yield from _mixers(str(pick), pick.target, pick.options)

    @property
    def mixes_prefix(self) -> bool:
        """True where class and register tokens are mixed. In one of several kinds of layers the mixer may be empty."""
        return self.traits.prefix or (bool(self.differing) and bool(self["token_mixer"].target.empty))

    @property
    def causal(self) -> bool:
        """True for a causal model."""
        return bool(self["model"].target.causal)

    @property
    def axes(self) -> int:
        """A, the number of coordinate axes of a token."""
        declared = self["tokenizer"].target.axes
        if declared is None:
            return self.tokens.axes
        return int(declared)

    @property
    def latents(self) -> bool:
        """True where token mixers see learned vectors instead of the tokens."""
        return bool(self["model"].target.latents)

    @property
    def prefix(self) -> Any:
        """The model's class and register tokens; None where it has none."""
        return self["model"].options.get("prefix")


@dataclass(frozen=True)
class Rule:
    """A function that gives a reason against a combination, and the two families that it is about."""

    pair: tuple[str, str]
    reason: Callable[[Facts], str | None]


def of_source(rule: Rule) -> Rule:
    """Return the same rule about the source, for choices of a model that reads one."""
    by_family = {family: key for key, family in OF_SOURCE.items()}

    @wraps(rule.reason)
    def reason(f: Facts) -> str | None:
        if f.source is None or not set(rule.pair) <= f.source.picks.keys():
            return None
        alike = not f.reads_source and not any(key in f.picks for key in OF_SOURCE)
        # The same choices read both sequences, so the rule about the data has said it.
        if alike and f.data.modality == f.source.data.modality and rule.reason(f):
            return None
        return rule.reason(f.source)

    reason.__name__ = f"{rule.reason.__name__}_of_source"
    first, second = (by_family.get(family, family) for family in rule.pair)
    return Rule((first, second), reason)


def of_row(rule: Rule) -> Rule:
    """Return the rule about the data's own sequence, for choices of a model that reads it."""

    @wraps(rule.reason)
    def reason(f: Facts) -> str | None:
        if f.reads_source:
            return None
        return rule.reason(f)

    return Rule(rule.pair, reason)


def of_read(rule: Rule) -> Rule:
    """Return the rule about the sequence that the head predicts from."""

    @wraps(rule.reason)
    def reason(f: Facts) -> str | None:
        return rule.reason(f.read)

    return Rule(rule.pair, reason)


def either(values: frozenset[Any] | set[Any]) -> str:
    """Return values as text: `1 or 2`, or `no` where there are none."""
    return " or ".join(sorted(map(str, values))) or "no"
