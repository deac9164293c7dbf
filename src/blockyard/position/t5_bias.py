"""T5 bias: a learned number for each head and each bucket of distances; buckets widen with distance.

Source: Raffel et al. 2020, Exploring the Limits of Transfer Learning (arXiv 1910.10683), section 2.1
Reference: transformers models/t5/modeling_t5.py, T5Attention._relative_position_bucket
Equation: score_ij + b_h[bucket(i - j)], half of the buckets exact, the others logarithmic in distance
Cost: nothing beyond the scores in FlexAttention; H buckets parameters per axis, shared by all layers

    distance   0 1 2 ... 15 | 16 17 18 | 19 20 | ...  | far and beyond          32 buckets, causal
    bucket     0 1 2 ... 15 |    16    |  17   | ...  | 31
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from blockyard.contracts import Context, Length, Position, Positive, Role
from blockyard.position._absolute import check_axes
from blockyard.weight_init import Init


class T5Bias(Position):
    """Causal models use all buckets for earlier tokens, others half of them for later ones. Axes of a grid add up.

    Options:
        buckets: number of buckets
        far: distance from which on all offsets share the last bucket
        std: standard deviation of the initial numbers; null means the model's init_std
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    roles: ClassVar[dict[str, Role]] = {"table": "fixed"}
    relative: ClassVar[bool] = True

    def __init__(
        self,
        ctx: Context,
        *,
        buckets: Annotated[Length, Ge(4)] = 32,
        far: Annotated[Length, Ge(2)] = 128,
        std: Positive | None = None,
    ) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.sees_later = ctx.sees_later
        self.std = std
        self.far = far
        if self.sees_later and buckets % 2:
            raise ValueError(f"position.buckets={buckets} must be even: half are for later tokens")
        self.side = buckets // 2 if self.sees_later else buckets
        if far <= self.side // 2:
            raise ValueError(
                f"position.far={far} is within the {self.side // 2} distances that have a bucket of their own; "
                f"use position.far={self.side // 2 + 1} or more, or fewer position.buckets"
            )
        buckets_of = [_bucket(distance, self.side, far) for distance in range(far + 1)]
        self.register_buffer("bucket", torch.tensor(buckets_of), persistent=False)  # (far + 1,)
        self.bucket: Tensor
        self.reads_once = ctx.tokens.axes == 1  # on a grid the table is read once for each axis
        self.table = nn.Parameter(torch.empty(ctx.tokens.axes, ctx.heads, buckets))  # (A, H, buckets)

    def init_weights(self, init: Init) -> None:
        """Draw normal numbers."""
        init.normal("table", std=self.std)

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Return the numbers of the buckets, for heads and coordinates over shapes that broadcast."""
        terms = []
        for axis, (q, k) in enumerate(zip(q_coords, k_coords, strict=True)):
            offset = (k - q).round().long()
            distance = offset.abs() if self.sees_later else (-offset).clamp(min=0)
            entry = self.bucket[distance.clamp(max=self.far)]
            if self.sees_later:
                entry = entry + (offset > 0).long() * self.side
            terms.append(self.table[axis, head, entry])
        return sum(terms[1:], terms[0])


def _bucket(distance: int, side: int, far: int) -> int:
    """Return the bucket of a distance, out of `side` buckets for earlier or for later tokens."""
    exact = side // 2
    if distance < exact:
        return distance
    log_bucket = math.log(distance / exact) / math.log(far / exact) * (side - exact)
    # The offset corrects integers that rounding left just below themselves.
    return min(exact + math.floor(log_bucket + 1e-9), side - 1)
