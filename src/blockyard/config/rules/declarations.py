"""What rules are judged by: the choices of a config, and what these declare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockyard.contracts import DataSpec, TokenSpec, Traits


@dataclass(frozen=True)
class Pick:
    """One family's choice: its name, class and options."""

    family: str
    name: str
    target: type
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.family}={self.name}"


@dataclass
class Facts:
    """The choices whose combination is judged."""

    picks: dict[str, Pick]

    def swapped(self, pick: Pick) -> Facts:
        """The same choices with one replaced."""
        return Facts({**self.picks, pick.family: pick})

    def __getitem__(self, family: str) -> Pick:
        return self.picks[family]

    @cached_property
    def data(self) -> DataSpec:
        """What the data says of itself."""
        return self["data"].target(**self["data"].options).spec

    @cached_property
    def tokens(self) -> TokenSpec:
        """What the tokenizer makes of the data, and the objective of that where one is chosen."""
        tokens = self["tokenizer"].target(**self["tokenizer"].options).spec(self.data)
        asked = self.picks.get("objective")
        return tokens if asked is None else asked.target(**asked.options).tokens(tokens)

    @property
    def traits(self) -> Traits:
        """Of the token mixer, under its options."""
        return self["token_mixer"].target.traits_for(self["token_mixer"].options)

    @property
    def causal(self) -> bool:
        """Whether the model hides the future."""
        return self["model"].target.causal

    @property
    def axes(self) -> int:
        """A, the number of coordinates of a token."""
        declared = self["tokenizer"].target.axes
        return self.tokens.axes if declared is None else declared

    @property
    def latents(self) -> bool:
        """Whether token mixers see learned vectors, and not the tokens."""
        return self["model"].target.latents

    @property
    def prefix(self) -> Any:
        """The model's class and register tokens; None where it has none."""
        return self["model"].options.get("prefix")


@dataclass(frozen=True)
class Rule:
    """A reason-giver and the two families whose choices it concerns."""

    pair: tuple[str, str]
    reason: Callable[[Facts], str | None]


def words(things: frozenset[Any] | set[Any]) -> str:
    """What a component can do, as a list in words."""
    return " or ".join(sorted(map(str, things))) or "no"
