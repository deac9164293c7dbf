"""Pooling: each token becomes the average of its neighbours minus itself, without weights.

Source: Yu et al. 2022, MetaFormer Is Actually What You Need for Vision (arXiv 2111.11418), eq. 4
Reference: timm models/metaformer.py, Pooling
Equation: mean over the neighbourhood of x, minus x
Cost: O(N D size^A) time, no parameters; O(N^2 D) for grids with holes or padding

      line           grid          causal: later tokens of the sequence are left out

    . x x x .      . . . . .          . x x . .          . x x x .
                   . x x x .                             . x x . .
                   . x x x .                             . . . . .
                   . x x x .
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Seq, Side, TokenMixer, Traits
from blockyard.token_mixer._checks import check_call, check_context


class Pool(TokenMixer):
    """Averages neighbours on the line or the grid; padding, other segments and the outside are left out.

    Options:
        size: side of the neighbourhood, an odd number of tokens
    """

    traits = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, *, size: Side = 3) -> None:
        super().__init__()
        check_context(self, ctx)
        if size % 2 == 0:
            raise ValueError(f"token_mixer.size={size} must be odd to have a middle; use {size + 1}")
        self.causal = ctx.causal
        self.axes = ctx.tokens.axes
        self.radius = size // 2
        offsets = product(range(-self.radius, self.radius + 1), repeat=self.axes)
        # Tokens are in reading order, so later ones have an offset greater than zero.
        self.offsets = [offset for offset in offsets if not ctx.causal or offset <= (0,) * self.axes]

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        grid = (len(seq),) if self.axes == 1 else seq.grid
        if grid is None or (self.axes > 1 and not (seq.valid is None and seq.segment is None)):
            return self._by_coordinates(x, seq)
        padded = self._pad(x, seq.valid, grid)  # (B, *grid + 2 radius, D)
        inside = self._pad(torch.ones_like(x[:1, :, :1]), None, grid)  # (1, *grid + 2 radius, 1)
        if seq.valid is not None:
            inside = self._pad(seq.valid[..., None].to(x.dtype), None, grid)  # (B, ..., 1)
        segment = None
        if seq.segment is not None:
            segment = self._pad(seq.segment[..., None], None, grid)
        middle = (0,) * self.axes
        total = torch.zeros_like(x)
        count = torch.zeros_like(x[..., :1])  # neighbours at an edge are fewer
        for offset in self.offsets:
            weight = self._shift(inside, offset, grid)  # (B|1, N, 1)
            if segment is not None:
                same = self._shift(segment, offset, grid) == self._shift(segment, middle, grid)
                weight = weight * same
            total = total + weight * self._shift(padded, offset, grid)
            count = count + weight
        return total / count.clamp(min=1) - x  # (B, N, D)

    def _by_coordinates(self, x: Tensor, seq: Seq) -> Tensor:
        """Pool tokens that are not a full grid, with neighbours found by their coordinates: (B, N, D)."""
        gap = (seq.token_coords[:, :, None] - seq.token_coords[:, None]).abs()  # (B|1, N, N, A)
        near = (gap < self.radius + 0.5).all(-1)  # (B|1, N, N)
        if self.causal:
            near = near & (seq.index <= seq.index[:, None])
        if seq.valid is not None:
            near = near & seq.valid[:, None]
        if seq.segment is not None:
            near = near & (seq.segment[:, None] == seq.segment[:, :, None])
        weight = near.to(x.dtype)
        values = x if seq.valid is None else x.masked_fill(~seq.valid[..., None], 0.0)
        return weight @ values / weight.sum(-1, keepdim=True).clamp(min=1) - x  # (B, N, D)

    def _pad(self, x: Tensor, valid: Tensor | None, grid: tuple[int, ...]) -> Tensor:
        """Return x (B, N, C) on its grid with a border of zeros: (B, *grid + 2 radius, C)."""
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
        return F.pad(x.unflatten(1, grid), (0, 0) + (self.radius, self.radius) * self.axes)

    def _shift(self, x: Tensor, offset: tuple[int, ...], grid: tuple[int, ...]) -> Tensor:
        """Return the neighbour at `offset` of each token: (B, *grid + 2 radius, C) -> (B, N, C)."""
        for axis, (move, side) in enumerate(zip(offset, grid, strict=True)):
            x = x.narrow(1 + axis, self.radius + move, side)
        return x.flatten(1, self.axes)  # (B, N, C)
