"""Cycle: a pattern of token mixers that repeats over the layers, such as two convolutions and an attention.

Source: the alternating layers of De et al. 2024, Griffin (arXiv 2402.19427), section 2, and Lieber et al. 2024, Jamba
    (arXiv 2403.19887), section 2
Reference: transformers models/recurrent_gemma, block_types
Equation: layer l mixes tokens with pattern[l mod length]
Cost: that of the layers' mixers

    token_mixer=cycle 'token_mixer.pattern=[conv,conv,attention]' token_mixer.members.conv.kernel=5

Every name in the pattern is a choice of token_mixer, with options of its own under members, or a node of your own
there. All members must be able to do what is asked of the model. A position scheme that turns queries or adds to
scores acts in the layers that have them; where no layer has, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

from blockyard.contracts import Context, TokenMixer, Traits
from blockyard.token_mixer._declared import check_traits

Member = Callable[[Context], TokenMixer]
FROM_THE_CHOICES: Mapping[str, Member] = MappingProxyType({})


class Cycle(TokenMixer):
    """Builds the mixer of its layer, and is none itself: weights, caches and maps are those of that mixer.

    Options:
        pattern: names of token mixers, from the first layer on, again and again
        members: the mixers by name; filled in from the choices of token_mixer
    """

    draws: ClassVar[dict[str, tuple[str, str]]] = {"members": ("token_mixer", "pattern")}

    def __new__(  # type: ignore[misc]
        cls, ctx: Context, *, pattern: tuple[str, ...] = ("conv", "attention"), members: dict[str, Member]
    ) -> TokenMixer:
        """The mixer of layer `ctx.layer`. Raises ValueError where a place or a member would be ignored."""
        _check(pattern, members)
        if len(pattern) > ctx.depth:
            raise ValueError(
                f"token_mixer.pattern has {len(pattern)} places, model.depth={ctx.depth} reaches {ctx.depth} of them; "
                f"use a shorter pattern or model.depth={len(pattern)}"
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
        raise AssertionError("never reached: what is built is no Cycle")

    @classmethod
    def traits_for(cls, options: dict[str, Any]) -> Traits:
        """What all members can do; what any of them needs, and the ports that any of them has."""
        made = [each.func.traits_for(each.keywords) for each in _factories(options)]
        found = {each.name: [getattr(traits, each.name) for traits in made] for each in fields(Traits)}
        of_any = {"ports": frozenset().union(*found.pop("ports")), "reads_features": any(found.pop("reads_features"))}
        axes = frozenset.intersection(*found.pop("axes"))
        return Traits(axes=axes, **of_any, **{name: all(values) for name, values in found.items()})

    @classmethod
    def has(cls, method: str, options: dict[str, Any]) -> bool:
        """Whether every member has it."""
        return all(each.func.has(method, each.keywords) for each in _factories(options))


def _factories(options: dict[str, Any]) -> list[Any]:
    pattern, members = options["pattern"], options["members"]
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
    idle = [name for name in members if name not in pattern]
    if idle:
        raise ValueError(
            f"token_mixer.members.{idle[0]} has no place in token_mixer.pattern=[{','.join(pattern)}]; "
            "add it to the pattern, or leave it out of the members"
        )
    inner = [name for name in pattern if issubclass(members[name].func, Cycle)]
    if inner:
        raise ValueError(f"token_mixer.members.{inner[0]} is a cycle itself; write its pattern into the outer one")
