"""Bias by offset: a free number for each head and each way from query to key, added to the score.

Source: Shaw et al. 2018, Self-Attention with Relative Position Representations (arXiv 1803.02155), section 3.2, for
    clipping; as a bias on a grid Liu et al. 2021, Swin Transformer (arXiv 2103.14030), eq. 4
Reference: timm layers/pos_embed_rel.py, RelPosBias
Equation: score_ij + b_h[clip(i - j, -c, c)], on a grid by both offsets
Cost: nothing beyond the scores in FlexAttention; H (2c + 1)^A parameters, shared by all layers
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Count, NonNegative, Position
from blockyard.position._axes import check_axes
from blockyard.weight_init import Init


class BiasOffset(Position):
    """All offsets beyond the clip share its number, so that longer rows are known. A causal row has no
    numbers for what lies ahead.

    Options:
        clip: the largest offset with a number of its own; null means the largest that the grid has
        std: spread of the initial numbers
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, clip: Count | None = None, std: NonNegative = 0.02) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.std = std
        self.high = [clip or max(side - 1, 1) for side in ctx.tokens.grid]
        ahead = not (ctx.causal and ctx.tokens.axes == 1)
        self.low = [-most if ahead else 0 for most in self.high]
        sizes = [high - low + 1 for low, high in zip(self.low, self.high, strict=True)]
        self.table = nn.Parameter(torch.empty(ctx.heads, math.prod(sizes)))  # (H, offsets), axis after axis

    def init_weights(self, init: Init) -> None:
        """Normal numbers."""
        init.normal("table", std=self.std)

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Heads and coordinates over shapes that broadcast -> the numbers of their offsets."""
        entry = None
        for here, there, low, high in zip(q_coords, k_coords, self.low, self.high, strict=True):
            offset = (here - there).round().long().clamp(low, high) - low
            entry = offset if entry is None else entry * (high - low + 1) + offset
        return self.table[head, entry]
