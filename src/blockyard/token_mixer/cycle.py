"""Cycle: a pattern of token mixers repeated over the layers, such as two convolutions and an attention.

Source: the alternating layers of De et al. 2024, Griffin (arXiv 2402.19427), section 2, and Lieber et al. 2024, Jamba
    (arXiv 2403.19887), section 2
Reference: transformers models/recurrent_gemma, block_types
Equation: layer l mixes tokens with pattern[l mod length]
Cost: that of the layers' mixers

    token_mixer=cycle 'token_mixer.pattern=[conv,conv,attention]' token_mixer.members.conv.kernel=5

Every name in the pattern is a choice of token_mixer, with its options under members, or a config node of your own
there. All members must support the requirements of the model. A position scheme that rotates queries or adds to scores
acts in the layers that have them; if no layer has, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

from blockyard.contracts import ChoiceOptions, Context, TokenMixer, Traits
from blockyard.token_mixer._checks import check_traits

Member = Callable[[Context], TokenMixer]
FROM_THE_CHOICES: Mapping[str, Member] = MappingProxyType({})


class Cycle(TokenMixer):
    """A factory: constructing it returns the mixer of that layer, with its own weights, caches and attention maps.

    Options:
        pattern: names of token mixers, from the first layer on, repeated
        members: the mixers by name; filled in from the choices of token_mixer
    """

    nested_choices: ClassVar[dict[str, tuple[str, str]]] = {"members": ("token_mixer", "pattern")}

    def __new__(  # type: ignore[misc]
        cls, ctx: Context, *, pattern: tuple[str, ...] = ("conv", "attention"), members: dict[str, Member]
    ) -> TokenMixer:
        """Return the mixer of layer `ctx.layer`. Raises ValueError if an entry or a member would have no effect."""
        _check(pattern, members)
        if len(pattern) > ctx.depth:
            raise ValueError(
                f"token_mixer.pattern has {len(pattern)} entries and model.depth={ctx.depth} uses only {ctx.depth} of "
                f"them; use a shorter pattern or model.depth={len(pattern)}"
            )
        check_traits(cls.__name__, cls.traits_for({"pattern": pattern, "members": members}), ctx)
        return members[pattern[ctx.layer % len(pattern)]](ctx)

    def __init__(
        self,
        ctx: Context,
        *,
        pattern: tuple[str, ...] = ("conv", "attention"),
        members: dict[str, Callable[[Context], TokenMixer]] = FROM_THE_CHOICES,  # type: ignore[assignment]
    ) -> None:
        raise AssertionError("never reached: __new__ returns a member")

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the abilities that all members have, and the requirements and ports that any of them has."""
        members: list[Traits] = [factory.func.traits_for(factory.keywords) for factory in _factories(options)]
        any_of = ("axes", "ports", "reads_features", "reads_pairs", "reads_ids", "gives", "takes")
        abilities = [field.name for field in fields(Traits) if field.name not in any_of]
        gives: set[str] = set()
        takes: set[str] = set()  # taken by a layer and given by none before it
        for traits in members:
            takes |= traits.takes - gives
            gives |= traits.gives
        has: dict[str, Any] = {name: all(getattr(traits, name) for traits in members) for name in abilities}
        return Traits(
            axes=frozenset.intersection(*(traits.axes for traits in members)),
            ports=frozenset().union(*(traits.ports for traits in members)),
            reads_features=any(traits.reads_features for traits in members),
            reads_pairs=any(traits.reads_pairs for traits in members),
            reads_ids=any(traits.reads_ids for traits in members),
            gives=frozenset(gives),
            takes=frozenset(takes),
            **has,
        )

    @classmethod
    def has(cls, method: str, options: ChoiceOptions) -> bool:
        """Return whether every member has the method."""
        return all(factory.func.has(method, factory.keywords) for factory in _factories(options))


def _factories(options: ChoiceOptions) -> list[Any]:
    pattern = options["pattern"]
    members = options["members"]
    _check(pattern, members)
    return [members[name] for name in dict.fromkeys(pattern)]


def _check(pattern: tuple[str, ...], members: Mapping[str, Any]) -> None:
    if not pattern:
        raise ValueError("token_mixer.pattern is empty; name at least one token mixer, such as [conv,attention]")
    missing = [name for name in dict.fromkeys(pattern) if name not in members]
    if missing:
        raise ValueError(
            f"token_mixer.pattern names {', '.join(missing)}, which is neither a token mixer nor one of "
            "token_mixer.members; see `blockyard list token_mixer`"
        )
    unused = [name for name in members if name not in pattern]
    if unused:
        raise ValueError(
            f"token_mixer.members.{unused[0]} is not in token_mixer.pattern=[{','.join(pattern)}]; "
            "add it to the pattern, or remove it from the members"
        )
    nested = [name for name in pattern if issubclass(members[name].func, Cycle)]
    if nested:
        raise ValueError(f"token_mixer.members.{nested[0]} is a cycle itself; write its pattern into the outer one")
    holding = [name for name in pattern if getattr(members[name].func, "holds", False)]
    if holding:
        raise ValueError(
            f"token_mixer.pattern names {holding[0]}, which holds mixers of its own; write it as a kind of layers: "
            f"layers.pattern=[base,both] layers.kinds.both=[token_mixer={holding[0]}]"
        )
