"""What a model keeps while it writes token by token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from blockyard.contracts import Memory, TokenMixer
from blockyard.ops.cache import cache_bytes


@dataclass
class Cache:
    """What a decoder keeps of the tokens so far: keys and values, or the state of a recurrence.

    layers: one cache each; length: tokens, without the prefix
    memory: the encoded source, where the model has one; it is read, not grown, and not counted in `bytes`
    """

    layers: list[Any]
    length: int = 0
    memory: Memory | None = field(default=None, repr=False)

    @property
    def bytes(self) -> int:
        """What the caches of all layers fill."""
        return cache_bytes(self)

    def reorder(self, order: Tensor, *, one_source: bool = False) -> None:
        """Row r goes on from what row `order[r]` kept; order: (B,) int64. For beams.

        Where all rows have one source, what was worked out from it stays.
        """
        for layer in self.layers:
            layer.reorder(order)
        if self.memory is not None and not one_source:
            self.memory = rows_of(self.memory, order)


def empty(mixers: list[TokenMixer], batch_size: int) -> Cache:
    """A cache without tokens. Raises ValueError naming the mixer that cannot have one."""
    for mixer in mixers:
        if not hasattr(mixer, "init_cache"):
            raise ValueError(
                f"token_mixer {type(mixer).__name__} cannot decode from a cache; run the whole row again "
                "for each token, or use token_mixer=attention"
            )
    return Cache([mixer.init_cache(batch_size) for mixer in mixers])


def rows_of(memory: Memory, order: Tensor) -> Memory:
    """The rows `order` (R,) int64 of a memory, in that order."""
    seq, order = memory.seq, order.to(memory.x.device)
    coords = seq.coords if seq.coords.shape[0] == 1 else seq.coords[order]  # (R|1, M, A)
    valid = None if seq.valid is None else seq.valid[order]  # (R, M)
    return Memory(memory.x[order], replace(seq, coords=coords, valid=valid, segment=None, memo={}))
