"""ALiBi: scores fall with distance, in each head at its own rate.

Source: Press et al. 2021, Train Short, Test Long (arXiv 2108.12409), section 3; two-dimensional distances as in
    Fuller et al. 2023, CROMA (arXiv 2311.00566)
Reference: transformers models/bloom/modeling_bloom.py, build_alibi_tensor
Equation: score_ij - slope_h |coords_i - coords_j|, slope_h = 2^(-8 h / H)
Cost: nothing beyond the scores in FlexAttention; an N x N table for each head elsewhere
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from blockyard.contracts import Context, Position
from blockyard.position._axes import check_axes


class Alibi(Position):
    """A fixed penalty on distance. Knows every coordinate, learns nothing.

    Options:
        distance: how far two tokens of a grid lie apart; both are the same on a line
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, distance: Literal["euclidean", "manhattan"] = "euclidean") -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.distance, self.heads = distance, ctx.heads

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Heads and coordinates over shapes that broadcast -> minus slope times distance."""
        gaps = [(here - there).abs() for here, there in zip(q_coords, k_coords, strict=True)]
        if self.distance == "euclidean" and len(gaps) > 1:
            far = torch.sqrt(sum(gap * gap for gap in gaps))
        else:
            far = sum(gaps[1:], gaps[0])
        return -self.slope(head).to(far.dtype) * far

    def slope(self, head: Tensor) -> Tensor:
        """The rate of each head, a geometric row; the paper's interleaved one where H is no power of two."""
        whole = 2 ** math.floor(math.log2(self.heads))
        steps = torch.where(head < whole, 8 * (head + 1) / whole, 4 * (2 * (head - whole) + 1) / whole)
        return torch.exp2(-steps)
