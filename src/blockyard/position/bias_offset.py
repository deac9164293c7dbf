"""Relative position bias: a learned number for each head and each offset from query to key, added to the score.

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

from blockyard.contracts import Context, Length, NonNegative, Position, Role
from blockyard.position._absolute import check_axes
from blockyard.weight_init import Init


class BiasOffset(Position):
    """Offsets beyond the clip share its number, so that longer sequences are covered.

    A causal sequence has no numbers for later tokens.

    Options:
        clip: largest offset with a number of its own; null means the largest of the grid
        std: standard deviation of the initial numbers
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    roles: ClassVar[dict[str, Role]] = {"table": "fixed"}
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, clip: Length | None = None, std: NonNegative = 0.02) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.std = std
        self.high = [clip or max(side - 1, 1) for side in ctx.tokens.grid]
        # A negative offset is a later token, which a causal model does not see.
        self.low = [-high if ctx.sees_later else 0 for high in self.high]
        sizes = [high - low + 1 for low, high in zip(self.low, self.high, strict=True)]
        self.table = nn.Parameter(torch.empty(ctx.heads, math.prod(sizes)))  # (H, offsets), axis after axis

    def init_weights(self, init: Init) -> None:
        """Draw normal numbers."""
        init.normal("table", std=self.std)

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Return the numbers of the offsets, for heads and coordinates over shapes that broadcast."""
        entry: Tensor | None = None  # index in the table, axis after axis
        for q, k, low, high in zip(q_coords, k_coords, self.low, self.high, strict=True):
            offset = (q - k).round().long().clamp(low, high) - low
            entry = offset if entry is None else entry * (high - low + 1) + offset
        return self.table[head, entry]
