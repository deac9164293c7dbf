"""What rules read: the choices of a config, and what their classes declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockyard.contracts import DataSpec, TokenSpec, Traits


@dataclass(frozen=True)
class Pick:
    """The choice of one family: its name, class and options."""

    family: str
    name: str
    target: type[Any]
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.family}={self.name}"


@dataclass
class Facts:
    """The choices of a config, and what follows from several of them."""

    picks: dict[str, Pick]

    def swapped(self, pick: Pick) -> Facts:
        """These choices with one replaced."""
        return Facts({**self.picks, pick.family: pick})

    def __getitem__(self, family: str) -> Pick:
        return self.picks[family]

    @cached_property
    def data(self) -> DataSpec:
        """The spec of the data."""
        spec: DataSpec = self["data"].target(**self["data"].options).spec
        return spec

    @cached_property
    def tokens(self) -> TokenSpec:
        """The tokens that the tokenizer makes of the data, as the objective, where there is one, changes them."""
        tokens: TokenSpec = self["tokenizer"].target(**self["tokenizer"].options).spec(self.data)
        objective = self.picks.get("objective")
        return tokens if objective is None else objective.target(**objective.options).tokens(tokens)

    @property
    def traits(self) -> Traits:
        """The traits of the token mixer under its options."""
        traits: Traits = self["token_mixer"].target.traits_for(self["token_mixer"].options)
        return traits

    @property
    def causal(self) -> bool:
        """Whether the model is causal."""
        return bool(self["model"].target.causal)

    @property
    def axes(self) -> int:
        """A, the number of coordinate axes of a token."""
        declared = self["tokenizer"].target.axes
        return self.tokens.axes if declared is None else int(declared)

    @property
    def latents(self) -> bool:
        """Whether token mixers see learned vectors instead of the tokens."""
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


def either(values: frozenset[Any] | set[Any]) -> str:
    """Values as text: `1 or 2`, or `no` where there are none."""
    return " or ".join(sorted(map(str, values))) or "no"
