"""T5's bias: a free number for each head and each bucket of distances, buckets widening with distance.

Source: Raffel et al. 2020, Exploring the Limits of Transfer Learning (arXiv 1910.10683), section 2.1
Reference: transformers models/t5/modeling_t5.py, T5Attention._relative_position_bucket
Equation: score_ij + b_h[bucket(i - j)], half of the buckets exact, the others as wide as log distance says
Cost: nothing beyond the scores in FlexAttention; H buckets parameters an axis, shared by all layers

    distance   0 1 2 ... 15 | 16 17 18 | 19 20 | ...  | far and all beyond      32 buckets, causal
    bucket     0 1 2 ... 15 |    16    |  17   | ...  | 31
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from blockyard.contracts import Context, Position, Positive
from blockyard.position._axes import check_axes
from blockyard.weight_init import Init


class T5Bias(Position):
    """A causal row has all buckets behind it, any other half of them ahead. On a grid the axes' numbers add up.

    Options:
        buckets: how many
        far: the distance from which on all share the last bucket
        std: spread of the initial numbers; null means the model's init_std
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    relative: ClassVar[bool] = True

    def __init__(
        self,
        ctx: Context,
        *,
        buckets: Annotated[int, Ge(4)] = 32,
        far: Annotated[int, Ge(2)] = 128,
        std: Positive | None = None,
    ) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.ahead, self.std, self.far = not (ctx.causal and ctx.tokens.axes == 1), std, far
        if self.ahead and buckets % 2:
            raise ValueError(f"position.buckets={buckets}: half are for what lies ahead, so it must be even")
        self.side = buckets // 2 if self.ahead else buckets
        if far <= self.side // 2:
            raise ValueError(
                f"position.far={far} is within the {self.side // 2} distances that have a bucket of their own; "
                f"use position.far={self.side // 2 + 1} or more, or fewer position.buckets"
            )
        rows = [_bucket(distance, self.side, far) for distance in range(far + 1)]
        self.register_buffer("bucket", torch.tensor(rows), persistent=False)  # (far + 1,)
        self.bucket: Tensor
        self.table = nn.Parameter(torch.empty(ctx.tokens.axes, ctx.heads, buckets))  # (A, H, buckets)

    def init_weights(self, init: Init) -> None:
        """Normal numbers."""
        init.normal("table", std=self.std)

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Heads and coordinates over shapes that broadcast -> the numbers of their buckets."""
        total = None
        for axis, (here, there) in enumerate(zip(q_coords, k_coords, strict=True)):
            offset = (there - here).round().long()
            behind = offset.abs() if self.ahead else (-offset).clamp(min=0)
            entry = self.bucket[behind.clamp(max=self.far)]
            if self.ahead:
                entry = entry + (offset > 0).long() * self.side
            number = self.table[axis, head, entry]
            total = number if total is None else total + number
        return total


def _bucket(distance: int, side: int, far: int) -> int:
    """The bucket of a distance on one side, of `side` in all."""
    exact = side // 2
    if distance < exact:
        return distance
    wide = math.log(distance / exact) / math.log(far / exact) * (side - exact)
    # Whole numbers that rounding left a hair below themselves.
    return min(exact + math.floor(wide + 1e-9), side - 1)
