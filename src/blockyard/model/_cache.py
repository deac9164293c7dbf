"""The cache of a model that generates token by token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from blockyard.contracts import Memory, TokenMixer
from blockyard.ops.cache import cache_bytes


@dataclass
class Cache:
    """The memory of a decoder of the tokens so far: keys and values, or the state of a recurrence.

    layers: one cache for each visit of a block, behind them the caches of n-grams and of the smear
    length: tokens so far, without the prefix
    memory: the encoded source of a model with one; it does not grow and is not counted in `bytes`
    """

    layers: list[Any]
    length: int = 0
    memory: Memory | None = field(default=None, repr=False)

    @property
    def bytes(self) -> int:
        """The size of the caches of all layers."""
        return cache_bytes(self)

    @property
    def croppable(self) -> bool:
        """Return whether the last tokens can be forgotten; otherwise decoding goes back to a `snapshot`."""
        return all(hasattr(layer, "crop") for layer in self.layers)

    def keep_spare(self, count: int) -> None:
        """Let layers that drop old tokens keep `count` more, so that as many can be cropped."""
        for layer in self.layers:
            if hasattr(layer, "spare"):
                layer.spare = count

    def crop(self, count: int) -> None:
        """Forget the last `count` tokens. Raises ValueError if a layer has dropped tokens that it would need."""
        for layer in self.layers:
            layer.crop(count)
        self.length -= count

    def snapshot(self) -> Cache:
        """Return the cache as it is now, to be continued later in place of this one.

        Raises ValueError naming a cache that cannot be taken back.
        """
        without = [type(layer).__name__ for layer in self.layers if not hasattr(layer, "snapshot")]
        if without:
            raise ValueError(f"{without[0]} has neither `crop` nor `snapshot`, so no token can be taken back from it")
        return replace(self, layers=[layer.snapshot() for layer in self.layers])

    def reorder(self, order: Tensor, *, one_source: bool = False) -> None:
        """Make sequence i continue the former sequence `order[i]`, for beam search. order: (B',) int64.

        one_source: all sequences have the same source, so the memory stays as it is
        """
        for layer in self.layers:
            layer.reorder(order)
        if self.memory is not None and not one_source:
            self.memory = select_sequences(self.memory, order)


@runtime_checkable
class HasCache(Protocol):
    """A model that decodes token by token from a cache."""

    def init_cache(self, batch_size: int) -> Cache:
        """Return an empty cache. Raises ValueError for a mixer that cannot have one."""


def empty_cache(mixers: list[TokenMixer], batch_size: int) -> Cache:
    """Return a cache without tokens. Raises ValueError naming a mixer that cannot have one."""
    layers = []
    for mixer in mixers:
        init_cache = getattr(mixer, "init_cache", None)
        if init_cache is None:
            raise ValueError(
                f"token_mixer {type(mixer).__name__} cannot decode from a cache; run the whole sequence again for "
                "each token, or use token_mixer=attention"
            )
        layers.append(init_cache(batch_size))
    return Cache(layers)


def select_sequences(memory: Memory, order: Tensor) -> Memory:
    """Return the sequences `order` (B',) int64 of a memory, in that order."""
    seq = memory.seq
    order = order.to(memory.x.device)
    # A grid has one set of coordinates for all sequences.
    coords = seq.coords if seq.coords.shape[0] == 1 else seq.coords[order]  # (B'|1, M, A)
    valid = None if seq.valid is None else seq.valid[order]  # (B', M)
    return Memory(memory.x[order], replace(seq, coords=coords, valid=valid, segment=None, ids=None, memo={}))
