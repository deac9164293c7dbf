"""What a mixer keeps of the tokens so far when it decodes: a state of constant size, or the last inputs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Seq


class StateCache:
    """Tensors with the batch first whose sizes do not grow with the row. For inference: no gradient is kept."""

    kind: ClassVar[str] = "recurrent state"

    def __init__(self) -> None:
        self.parts: tuple[Tensor, ...] | None = None  # each (B, ...); None before the first token

    @property
    def bytes(self) -> int:
        """What the state fills."""
        return sum(part.numel() * part.element_size() for part in self.parts or ())

    def store(self, *parts: Tensor) -> None:
        """Keep these in place of what was there."""
        self.parts = tuple(part.detach() for part in parts)

    def reorder(self, order: Tensor) -> None:
        """Row i becomes what row order[i] was; order (B',) int64 may repeat rows, drop some, or add to them."""
        if self.parts is not None:
            self.parts = tuple(part.index_select(0, order) for part in self.parts)


class RowCache(StateCache):
    """The last `window` inputs of a mixer with their places; None keeps all."""

    kind: ClassVar[str] = "cache of past inputs"

    def __init__(self, batch_size: int, window: int | None) -> None:
        super().__init__()
        self.batch_size, self.window = batch_size, window
        self.index: Tensor | None = None

    def append(self, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """Inputs (B, N, C) of new tokens; what is kept and the new ones (B, M, C), and their facts."""
        if len(x) != self.batch_size:
            raise ValueError(f"the cache is for {self.batch_size} rows, not {len(x)}")
        coords, index = seq.coords.expand(len(x), -1, -1), seq.index
        if self.parts is not None:
            x = torch.cat([self.parts[0], x], dim=1)  # (B, M, C)
            coords = torch.cat([self.parts[1], coords], dim=1)  # (B, M, A)
            index = torch.cat([self.index, index])  # (M,)
        first = 0 if self.window is None else max(0, len(index) - self.window)
        self.store(x[:, first:].clone(), coords[:, first:].clone())
        self.index = index[first:]
        return x, Seq(index, coords, position=seq.position)

    def reorder(self, order: Tensor) -> None:
        """As `StateCache.reorder`."""
        self.batch_size = len(order)
        super().reorder(order)
