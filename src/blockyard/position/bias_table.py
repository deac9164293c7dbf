"""Bias table: a free number for each head and each pair of places, added to their score.

Source: Ke et al. 2020, Rethinking Positional Encoding in Language Pre-training (arXiv 2006.15595): a term of two
    places alone, here with every pair free
Reference: none with all pairs free; position=bias_offset is the one that libraries have
Equation: score_ij + B_h[i, j]
Cost: nothing beyond the scores in FlexAttention; H N^2 parameters, shared by all layers
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, NonNegative, Position
from blockyard.position._axes import check_axes
from blockyard.weight_init import Init


class BiasTable(Position):
    """Knows nothing of distance: each pair of places learns alone. Coordinates between places take the nearest.

    Options:
        std: spread of the initial numbers
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    bounded: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, std: NonNegative = 0.02) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.grid, self.std = ctx.tokens.grid, std
        places = ctx.tokens.max_len
        self.table = nn.Parameter(torch.empty(ctx.heads, places, places))  # (H, N, N), places in grid order

    def init_weights(self, init: Init) -> None:
        """Normal numbers."""
        init.normal("table", std=self.std)

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Heads and coordinates over shapes that broadcast -> the table's entries."""
        return self.table[head, self._place(q_coords), self._place(k_coords)]

    def _place(self, coords: tuple[Tensor, ...]) -> Tensor:
        """Which place of the grid, row after row."""
        place = coords[0].round().long().clamp(0, self.grid[0] - 1)
        for axis, side in zip(coords[1:], self.grid[1:], strict=True):
            place = place * side + axis.round().long().clamp(0, side - 1)
        return place
