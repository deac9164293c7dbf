"""Caches for decoding beside plain keys and values: a state of constant size, the last inputs, both, or nothing."""

from __future__ import annotations

import copy
from typing import ClassVar, Self

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops.cache import KVCache


class StateCache:
    """Tensors of a size that does not grow with the sequence, batch first. For inference: detached from the graph."""

    kind: ClassVar[str] = "recurrent state"

    def __init__(self) -> None:
        self.parts: tuple[Tensor, ...] | None = None  # each (B, ...); None before the first token

    @property
    def bytes(self) -> int:
        """The size of the state."""
        return sum(part.numel() * part.element_size() for part in self.parts or ())

    def store(self, *parts: Tensor) -> None:
        """Replace the state."""
        self.parts = tuple(part.detach() for part in parts)

    def snapshot(self) -> Self:
        """Return the cache as it is now. A state cannot be cropped: the states before it are not kept."""
        return copy.copy(self)

    def reorder(self, order: Tensor) -> None:
        """Make sequence i the former sequence order[i]. order: (B',) int64; it may repeat sequences and drop some."""
        if self.parts is not None:
            self.parts = tuple(part.index_select(0, order) for part in self.parts)


class InputCache(StateCache):
    """The last `window` inputs of a mixer with their indices and coordinates; all inputs if `window` is None.

    spare: number of further inputs that are kept, so that the cache can be cropped by as many
    """

    kind: ClassVar[str] = "cache of past inputs"

    def __init__(self, batch_size: int, window: int | None) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.window = window
        self.index: Tensor | None = None
        self.length = 0  # inputs so far
        self.spare = 0  # inputs kept beyond the window

    def append(self, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """x (B, N, C) of new tokens -> the cached inputs and x behind them (B, M, C), and their facts."""
        if len(x) != self.batch_size:
            raise ValueError(f"the cache is for {self.batch_size} sequences, not {len(x)}")
        coords = seq.coords.expand(len(x), -1, -1)  # (B, N, A)
        index = seq.index
        if self.parts is not None:
            assert self.index is not None
            x = torch.cat([self.parts[0], x], dim=1)  # (B, M, C)
            coords = torch.cat([self.parts[1], coords], dim=1)  # (B, M, A)
            index = torch.cat([self.index, index])  # (M,)
        self.length += len(seq)
        first = 0 if self.window is None else max(0, len(index) - self.window - self.spare)
        # Clones: a view would keep every input so far in memory.
        self.store(x[:, first:].clone(), coords[:, first:].clone())
        self.index = index[first:]
        return x, Seq(index, coords, position=seq.position)

    def reorder(self, order: Tensor) -> None:
        """Reorder the sequences, as `StateCache.reorder` does."""
        self.batch_size = len(order)
        super().reorder(order)

    def crop(self, count: int) -> None:
        """Forget the last `count` inputs. Raises ValueError if the next token would read inputs that are dropped."""
        if not count or self.parts is None or self.index is None:  # a mixer without neighbours stores nothing
            return
        kept = len(self.index) - count
        if kept < 0 or (self.window is not None and kept < min(self.window, self.length - count)):
            raise ValueError(f"the cache has dropped inputs that it needs without its last {count}; set spare={count}")
        self.store(*(part[:, :kept] for part in self.parts))
        self.index = self.index[:kept]
        self.length -= count


class EmptyCache:
    """A cache that stores nothing."""

    bytes = 0
    kind = ""

    def crop(self, count: int) -> None:
        """Does nothing: the cache is empty."""

    def snapshot(self) -> EmptyCache:
        """Return the cache itself, which never changes."""
        return self

    def reorder(self, order: Tensor) -> None:
        """Does nothing: the cache is empty."""


class ConvolvedCache:
    """A cache of keys and values, and the last inputs (B, k - 1, C) of a short convolution in front of them.

    Earlier inputs are not kept, so that tokens are taken back by `snapshot`, not by cropping.
    """

    kind: ClassVar[str] = KVCache.kind

    def __init__(self, keys: KVCache, inputs: Tensor | None = None) -> None:
        self.keys, self.inputs = keys, inputs

    @property
    def bytes(self) -> int:
        """The size of keys, values and inputs."""
        if self.inputs is None:
            return self.keys.bytes
        return self.keys.bytes + self.inputs.numel() * self.inputs.element_size()

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """Append new keys and values, as `KVCache.append` does."""
        return self.keys.append(k, v, seq)

    def snapshot(self) -> ConvolvedCache:
        """Return the cache as it is now. Only one of the two may be continued: they share the memory of the keys."""
        return ConvolvedCache(self.keys.snapshot(), self.inputs)

    def reorder(self, order: Tensor) -> None:
        """Reorder the sequences, as `KVCache.reorder` does."""
        self.keys.reorder(order)
        if self.inputs is not None:
            self.inputs = self.inputs.index_select(0, order)
