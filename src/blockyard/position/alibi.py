"""ALiBi: a penalty on attention scores that grows linearly with distance, with another slope in each head.

Source: Press et al. 2021, Train Short, Test Long (arXiv 2108.12409), section 3; two-dimensional distances as in
    Fuller et al. 2023, CROMA (arXiv 2311.00566)
Reference: transformers models/bloom/modeling_bloom.py, build_alibi_tensor
Equation: score_ij - slope_h |coords_i - coords_j|, slope_h = 2^(-8 h / H)
Cost: nothing beyond the scores in FlexAttention; an N x N table for each head elsewhere

The paper also tried trained slopes and kept fixed ones, which extrapolate better to longer sequences.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Position, Role
from blockyard.position._absolute import check_axes
from blockyard.weight_init import Init


class Alibi(Position):
    """Defined for every coordinate, and so for any length.

    Options:
        distance: metric between two tokens of a grid; both are the same on a line
        slopes: fixed at the paper's values, or trained from there; trained slopes stay positive
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    roles: ClassVar[dict[str, Role]] = {"steps": "fixed"}
    relative: ClassVar[bool] = True

    def __init__(
        self,
        ctx: Context,
        *,
        distance: Literal["euclidean", "manhattan"] = "euclidean",
        slopes: Literal["fixed", "trained"] = "fixed",
    ) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.distance = distance
        self.heads = ctx.heads
        self.steps = nn.Parameter(torch.empty(ctx.heads)) if slopes == "trained" else None  # (H,), -log2 of the slopes

    def init_weights(self, init: Init) -> None:
        """Set the slopes of the paper."""
        init.copy("steps", self._paper(torch.arange(self.heads)))

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Return minus slope times distance, for heads and coordinates over shapes that broadcast."""
        gaps = [(q - k).abs() for q, k in zip(q_coords, k_coords, strict=True)]
        if self.distance == "euclidean" and len(gaps) > 1:
            squares = [gap * gap for gap in gaps]
            distance = torch.sqrt(sum(squares[1:], squares[0]))
        else:
            distance = sum(gaps[1:], gaps[0])
        return -self.slope(head).to(distance.dtype) * distance

    def slope(self, head: Tensor) -> Tensor:
        """Return the slope of each head."""
        # Trained slopes are powers of two, so that they stay positive.
        exponent = self._paper(head) if self.steps is None else self.steps[head]
        return torch.exp2(-exponent)

    def _paper(self, head: Tensor) -> Tensor:
        """Return minus log2 of the paper's slopes: 8 (h + 1) / H for H a power of two."""
        # For other H the largest power of two below it, then every second slope of the next power of two.
        power = 2 ** math.floor(math.log2(self.heads))
        return torch.where(head < power, 8 * (head + 1) / power, 4 * (2 * (head - power) + 1) / power)
