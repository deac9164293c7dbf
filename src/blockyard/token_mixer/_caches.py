"""Caches for decoding beside plain keys and values: a state of constant size, the last inputs, both, or nothing."""

from __future__ import annotations

import copy
from typing import ClassVar, Self

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops.cache import KVCache


class StateCache:
    """Tensors whose size does not grow with the sequence, batch first. For inference: detached from the graph."""

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
        """The cache as it is now. A state cannot be cropped, because it does not keep the states before it."""
        return copy.copy(self)

    def reorder(self, order: Tensor) -> None:
        """Sequence i becomes the former order[i]; order (B',) int64 may repeat sequences and drop some."""
        if self.parts is not None:
            self.parts = tuple(part.index_select(0, order) for part in self.parts)


class InputCache(StateCache):
    """The last `window` inputs of a mixer with their indices and coordinates; `window` None keeps all.

    spare: so many inputs more, by which it can be cropped
    """

    kind: ClassVar[str] = "cache of past inputs"

    def __init__(self, batch_size: int, window: int | None) -> None:
        super().__init__()
        self.batch_size, self.window = batch_size, window
        self.index: Tensor | None = None
        self.length, self.spare = 0, 0  # inputs so far; inputs kept beyond the window

    def append(self, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """x (B, N, C) of new tokens -> the cached inputs followed by x (B, M, C), and their `Seq`."""
        if len(x) != self.batch_size:
            raise ValueError(f"the cache is for {self.batch_size} sequences, not {len(x)}")
        coords, index = seq.coords.expand(len(x), -1, -1), seq.index
        if self.parts is not None:
            assert self.index is not None
            x = torch.cat([self.parts[0], x], dim=1)  # (B, M, C)
            coords = torch.cat([self.parts[1], coords], dim=1)  # (B, M, A)
            index = torch.cat([self.index, index])  # (M,)
        self.length += len(seq)
        first = 0 if self.window is None else max(0, len(index) - self.window - self.spare)
        self.store(x[:, first:].clone(), coords[:, first:].clone())
        self.index = index[first:]
        return x, Seq(index, coords, position=seq.position)

    def reorder(self, order: Tensor) -> None:
        """As `StateCache.reorder`."""
        self.batch_size = len(order)
        super().reorder(order)

    def crop(self, count: int) -> None:
        """Forget the last `count` inputs. Raises ValueError where inputs are missing that the next token would read."""
        if not count or self.parts is None or self.index is None:  # a layer may read no other tokens
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
        """The cache itself."""
        return self

    def reorder(self, order: Tensor) -> None:
        """Does nothing: the cache is empty."""


class ConvolvedCache:
    """A cache of keys and values, and the last inputs (B, k - 1, C) of a short convolution in front of them.

    Tokens are taken back by `snapshot`: earlier inputs are not kept.
    """

    kind: ClassVar[str] = KVCache.kind

    def __init__(self, keys: KVCache, inputs: Tensor | None = None) -> None:
        self.keys, self.inputs = keys, inputs

    @property
    def bytes(self) -> int:
        """The size of keys, values and inputs."""
        return self.keys.bytes + (0 if self.inputs is None else self.inputs.numel() * self.inputs.element_size())

    def append(self, k: Tensor, v: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Seq]:
        """As `KVCache.append`."""
        return self.keys.append(k, v, seq)

    def snapshot(self) -> ConvolvedCache:
        """The cache as it is now: only one of the two can be continued."""
        return ConvolvedCache(self.keys.snapshot(), self.inputs)

    def reorder(self, order: Tensor) -> None:
        """As `KVCache.reorder`."""
        self.keys.reorder(order)
        if self.inputs is not None:
            self.inputs = self.inputs.index_select(0, order)
