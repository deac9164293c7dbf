"""ALiBi: scores fall with distance, in each head at its own rate.

Source: Press et al. 2021, Train Short, Test Long (arXiv 2108.12409), section 3; two-dimensional distances as in
    Fuller et al. 2023, CROMA (arXiv 2311.00566)
Reference: transformers models/bloom/modeling_bloom.py, build_alibi_tensor
Equation: score_ij - slope_h |coords_i - coords_j|, slope_h = 2^(-8 h / H)
Cost: nothing beyond the scores in FlexAttention; an N x N table for each head elsewhere

The paper tried trained slopes too and kept fixed ones, which read longer rows better.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Position
from blockyard.position._axes import check_axes
from blockyard.weight_init import Init


class Alibi(Position):
    """A penalty on distance, in each head its own. Knows every coordinate.

    Options:
        distance: how far two tokens of a grid lie apart; both are the same on a line
        slopes: fixed at the paper's, or trained from there; trained ones stay above 0
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
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
        self.distance, self.heads = distance, ctx.heads
        self.steps = nn.Parameter(torch.empty(ctx.heads)) if slopes == "trained" else None  # (H,), -log2 of the slopes

    def init_weights(self, init: Init) -> None:
        """The paper's slopes."""
        init.copy("steps", self._paper(torch.arange(self.heads)))

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Heads and coordinates over shapes that broadcast -> minus slope times distance."""
        gaps = [(here - there).abs() for here, there in zip(q_coords, k_coords, strict=True)]
        if self.distance == "euclidean" and len(gaps) > 1:
            far = torch.sqrt(sum(gap * gap for gap in gaps))
        else:
            far = sum(gaps[1:], gaps[0])
        return -self.slope(head).to(far.dtype) * far

    def slope(self, head: Tensor) -> Tensor:
        """The rate of each head."""
        return torch.exp2(-(self._paper(head) if self.steps is None else self.steps[head]))

    def _paper(self, head: Tensor) -> Tensor:
        """Minus log2 of a geometric row of slopes; the paper's interleaved one where H is no power of two."""
        whole = 2 ** math.floor(math.log2(self.heads))
        return torch.where(head < whole, 8 * (head + 1) / whole, 4 * (2 * (head - whole) + 1) / whole)
