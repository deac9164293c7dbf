"""Tensors that flow between layers besides the stream: a visit of a block takes tensors that earlier ones gave.

    visit 0    block 0 --> values ---------+----------------+     given, kept until no later visit takes it
                 |                         |                |
    visit 1    block 1 <-- carry: values --+                |     read only
                 |                                          |
    visit 2    block 0 --> values, from here on these       |
                 |
    visit 3    block 1 <-- carry: values

A block that gives does so at each of its visits, and a visit reads the last tensor given. Every visit has its own
`Seq`: a block that is computed again in the backward pass reads the same tensors as the first time, and the tensors
that it then gives again reach nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from blockyard.contracts import Block, Context, Seq, TokenMixer


def build_in_turn(ctx: Context, make: Callable[[Context], Block]) -> list[Block]:
    """Build the blocks of `ctx`. The Context of each holds the shapes of the tensors that earlier blocks give."""
    blocks: list[Block] = []
    earlier: dict[str, tuple[int, ...]] = {}
    for layer in range(ctx.depth):
        block = make(replace(ctx.at(layer), given=dict(earlier)))
        blocks.append(block)
        for mixer in mixers_of(block):
            earlier |= mixer.gives
    return blocks


def mixers_of(block: nn.Module) -> list[TokenMixer]:
    """Return the token mixers in a block."""
    return [part for part in block.modules() if isinstance(part, TokenMixer)]


class Carry:
    """The tensors that each block gives and takes, known when the model is built.

    takes: the names of the tensors that each block takes
    used: True if any block takes one
    schemes: the position scheme that acts in each block

    Raises ValueError for a tensor that is taken and given by no earlier block, or given under another position scheme.
    """

    def __init__(self, blocks: Sequence[nn.Module], order: Sequence[int], schemes: Sequence[object]) -> None:
        inside = [mixers_of(block) for block in blocks]
        self.takes = [frozenset().union(*(mixer.takes for mixer in mixers)) for mixers in inside]
        self.gives = [frozenset(name for mixer in mixers for name in mixer.gives) for mixers in inside]
        self._taken = frozenset().union(*self.takes)
        self.used = bool(self._taken)
        self._check(order)
        placed = [frozenset().union(*(mixer.takes_placed for mixer in mixers)) for mixers in inside]
        # Keys were rotated by the scheme of the giver, and a query of another scheme would not match them.
        for (name, giver), takers in self.readers(order).items():
            apart = [index for index in takers if name in placed[index] and schemes[index] is not schemes[giver]]
            if apart:
                raise ValueError(
                    f"block {apart[0]} reads the {_shown(name)} of block {giver}, which has another position scheme; "
                    "give both the same position"
                )
        for mixer in (mixer for mixers in inside for mixer in mixers):
            idle = sorted(mixer.must_be_taken - self._taken)
            if idle:
                raise ValueError(
                    f"token_mixer {type(mixer).__name__} gives its {_shown(idle[0])} to later layers, and none takes "
                    "them, so the option has no effect; use a larger model.depth, or leave the option out"
                )

    def readers(self, order: Sequence[int]) -> dict[tuple[str, int], list[int]]:
        """Return the blocks that read a tensor, by its name and the block that gives it, in the order of visits."""
        latest: dict[str, int] = {}
        readers: dict[tuple[str, int], list[int]] = {}
        for index in order:
            for name in sorted(self.takes[index]):
                readers.setdefault((name, latest[name]), []).append(index)
            latest |= dict.fromkeys(self.gives[index], index)
        return readers

    def start(self) -> dict[str, Any]:
        """Return the tensors carried in front of the first visit: none."""
        return {}

    def to(self, index: int, seq: Seq, carried: Mapping[str, Any]) -> Seq:
        """Return the facts for a visit of block `index`, with the carried tensors that it takes."""
        if not self.used:
            return seq
        return replace(seq, carry={name: carried[name] for name in sorted(self.takes[index])}, given={})

    def after(self, seq: Seq, carried: dict[str, Any]) -> None:
        """Keep the tensors that a visit gave and any block takes. seq: the facts that `to` returned."""
        if seq.given:
            carried |= {name: value for name, value in seq.given.items() if name in self._taken}
            seq.given.clear()

    def _check(self, order: Sequence[int]) -> None:
        available: set[str] = set()
        for index in order:
            missing = sorted(self.takes[index] - available)
            if missing:
                raise ValueError(
                    f"block {index} takes the {_shown(missing[0])} of an earlier layer, and none that is visited "
                    "before it gives them"
                )
            available |= self.gives[index]


def carried_text(carry: Carry, order: Sequence[int]) -> str:
    """Return givers and takers of tensors as text, such as `values of block 0 in 1, 2`, in the order of visits."""
    return "; ".join(
        f"{_shown(name)} of block {giver} in {', '.join(map(str, dict.fromkeys(takers)))}"
        for (name, giver), takers in carry.readers(order).items()
    )


def _shown(name: str) -> str:
    return name.replace("_", " ")
