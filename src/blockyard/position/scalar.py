"""Scalar positions: one number for each axis that grows with the place.

Source: coordinates as channels: Liu et al. 2018, CoordConv (arXiv 1807.03247)
Reference: none; the plainest code there is, for comparison with waves
Equation: x_t + step p e_a, e_a being channel a of axis a
Cost: O(N) time, no parameters
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Positive
from blockyard.position._absolute import Absolute, Combine, token_size
from blockyard.position._axes import check_axes


class Scalar(Absolute):
    """Axis a is written into channel a (or a channel of its own). Neighbours differ by one step, near or far.

    One channel, not all of them: a number added to every channel is what a norm over channels takes out.

    Options:
        step: from one place to the next; null lets the number reach the size of a fresh token's vector at the
            far end of the grid
    """

    def __init__(self, ctx: Context, *, step: Positive | None = None, combine: Combine = "add") -> None:
        check_axes(type(self), ctx)
        super().__init__(ctx, combine=combine, channels=ctx.tokens.axes)
        self.dim = ctx.dim
        self.steps = [step or token_size(ctx) / max(1, side - 1) for side in ctx.tokens.grid]

    def code(self, coords: Tensor, like: Tensor) -> Tensor:
        """coords (B|1, N, A) times their steps: (B|1, N, A), filled up with zeros where it is added."""
        exact = torch.promote_types(coords.dtype, torch.float32)
        places = coords.to(exact).unbind(-1)
        numbers = torch.stack([p * step for p, step in zip(places, self.steps, strict=True)], dim=-1)  # (B|1, N, A)
        if self.combine == "add":
            numbers = F.pad(numbers, (0, self.dim - self.channels))  # (B|1, N, D)
        return numbers.to(like.dtype)
