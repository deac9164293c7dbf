"""Learned positions: one learned vector per position, added to the token or concatenated.

Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning (arXiv 1705.03122), section 3.1; resizing as
    in Dosovitskiy et al. 2021, An Image is Worth 16x16 Words (arXiv 2010.11929), section 3.2
Reference: timm models/vision_transformer.py, pos_embed; transformers GPT2Model.wpe
Equation: x_t + table[coords_t], linearly interpolated
Cost: O(N D) time, one parameter per position and channel
"""

from __future__ import annotations

from itertools import product
from math import isqrt, prod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, NonNegative, Role, Width
from blockyard.position._absolute import Absolute, Combine, check_axes, encoding_width
from blockyard.weight_init import Init


class Learned(Absolute):
    """A table over the grid of tokens, interpolated between its entries.

    The model scales the coordinates of a full grid larger than the table down to it, so that inputs larger than in
    training are interpolated. The table does not extend beyond its edge. A causal sequence cannot be scaled by its own
    length, unknown to its first tokens: see `beyond`.

    Options:
        std: standard deviation of the initial vectors; null means the model's init_std
        combine: add the vectors to all channels, or concat them in channels of their own
        width: channels of a concatenated encoding; null means a quarter of model.dim
        beyond: evaluation on sequences longer than the table (trainer.extrapolate): refuse it, or interpolate, which
            scales coordinates down by the factor of that evaluation
    """

    bounded: ClassVar[bool] = True
    length_advice: ClassVar[str] = "position.beyond=interpolate scales the sequence down to them"
    roles: ClassVar[dict[str, Role]] = {"table": "input"}

    def __init__(
        self,
        ctx: Context,
        *,
        std: NonNegative | None = None,
        combine: Combine = "add",
        width: Width | None = None,
        beyond: Literal["refuse", "interpolate"] = "refuse",
    ) -> None:
        check_axes(type(self), ctx)
        super().__init__(ctx, combine=combine, channels=encoding_width("learned", ctx, combine, width))
        self.grid = ctx.tokens.grid
        self.std = std
        self.from_start = ctx.causal or ctx.tokens.variable  # a position is counted from the first token
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(ctx.tokens.max_len, self.channels))  # (N, channels), row-major

    @property
    def scales_length(self) -> bool:
        """Return whether longer sequences are interpolated."""
        return self.beyond == "interpolate"

    def init_weights(self, init: Init) -> None:
        """Draw normal vectors."""
        init.normal("table", std=self.std)

    def resized(self, name: str, value: Tensor, grid: tuple[int, ...] | None) -> Tensor | None:
        """Return a table (M, channels) over `grid` resized to this grid, (N, channels), or None if it is not resized.

        Tables of full grids are interpolated linearly along each axis with their outer edges kept: entry i of n reads
        at (i + 1/2) m / n - 1/2 of m, as an input larger than the table does. If positions are counted from the first
        token, as in causal sequences and in sequences of any length, the first entries are taken; a longer table then
        needs beyond=interpolate. An unknown grid is the grid of this table, or else a square.
        """
        grid = grid or _likely_grid(len(value), self.grid)
        fits = grid is not None and len(grid) == len(self.grid) and prod(grid) == len(value)
        if name != "table" or grid is None or not fits or value.shape[1] != self.channels or grid == self.grid:
            return None
        if self.from_start and len(grid) == 1 and self.grid[0] < grid[0]:
            return value[: self.grid[0]]
        if self.from_start and not self.scales_length:
            return None
        table = value.T.reshape(1, self.channels, *grid)
        mode = "linear" if len(grid) == 1 else "bilinear"
        return F.interpolate(table, self.grid, mode=mode, align_corners=False).flatten(2)[0].T  # (N, channels)

    def encoding(self, coords: Tensor, like: Tensor) -> Tensor:
        """Return the table at coords (B|1, N, A), multilinear between its entries: (B|1, N, channels)."""
        low, fraction = [], []
        for axis, side in enumerate(self.grid):
            coord = coords[..., axis].clamp(0, side - 1)  # (B|1, N)
            floor = coord.floor().clamp(max=max(side - 2, 0))  # the last entry is the upper corner of its cell
            low.append(floor.long())
            fraction.append((coord - floor).to(self.table.dtype))
        # A sum over the 2^A corners of the cell that a coordinate lies in.
        out = torch.zeros((), dtype=self.table.dtype, device=like.device)
        for corner in product((0, 1), repeat=len(self.grid)):
            index = torch.zeros_like(low[0])
            weight = torch.ones_like(fraction[0])
            for axis, step in enumerate(corner):
                side = self.grid[axis]
                index = index * side + (low[axis] + step).clamp(max=side - 1)
                weight = weight * (fraction[axis] if step else 1 - fraction[axis])
            out = out + weight[..., None] * self.table[index]  # (B|1, N, channels)
        return out


def _likely_grid(entries: int, own: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the grid of a table from its number of entries: `own` if it has as many, else a square."""
    if prod(own) == entries:
        return own
    side = isqrt(entries)
    if len(own) == 2 and side * side != entries:
        return None
    return (entries,) if len(own) == 1 else (side,) * len(own)
