"""Bias table: a learned number for each head and each pair of positions, added to their score.

Source: Ke et al. 2020, Rethinking Positional Encoding in Language Pre-training (arXiv 2006.15595): a term that depends
    on the two positions only, here free for every pair
Reference: none with all pairs free; libraries have position=bias_offset
Equation: score_ij + B_h[i, j]
Cost: nothing beyond the scores in FlexAttention; H N^2 parameters, shared by all layers
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, NonNegative, Position, Role
from blockyard.position._absolute import check_axes
from blockyard.weight_init import Init


class BiasTable(Position):
    """Each pair of positions is learned on its own, without a notion of distance. Coordinates are rounded.

    Options:
        std: standard deviation of the initial numbers
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    roles: ClassVar[dict[str, Role]] = {"table": "fixed"}
    bounded: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, std: NonNegative = 0.02) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.grid = ctx.tokens.grid
        self.std = std
        size = ctx.tokens.max_len
        self.table = nn.Parameter(torch.empty(ctx.heads, size, size))  # (H, N, N), in row-major grid order

    def init_weights(self, init: Init) -> None:
        """Draw normal numbers."""
        init.normal("table", std=self.std)

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Return the entries of the table, for heads and coordinates over shapes that broadcast."""
        return self.table[head, self._index(q_coords), self._index(k_coords)]

    def _index(self, coords: tuple[Tensor, ...]) -> Tensor:
        """Return the row-major index on the grid."""
        index = coords[0].round().long().clamp(0, self.grid[0] - 1)
        for axis, side in zip(coords[1:], self.grid[1:], strict=True):
            index = index * side + axis.round().long().clamp(0, side - 1)
        return index
