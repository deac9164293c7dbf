"""Scalar positions: one number for each axis, proportional to the coordinate.

Source: coordinates as channels: Liu et al. 2018, CoordConv (arXiv 1807.03247)
Reference: none; the simplest encoding, for comparison with sinusoids
Equation: x_t + step p e_a, e_a being channel a of axis a
Cost: O(N) time, no parameters
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Positive
from blockyard.position._absolute import Absolute, Combine, check_axes, token_norm


class Scalar(Absolute):
    """Axis a is added to channel a, or has a channel of its own. Neighbours differ by one step everywhere.

    It uses one channel per axis: a norm over channels removes a number that is added to all of them.

    Options:
        step: difference between neighbouring positions; null means that the number reaches the norm of a token
            embedding at the far end of the grid
    """

    def __init__(self, ctx: Context, *, step: Positive | None = None, combine: Combine = "add") -> None:
        check_axes(type(self), ctx)
        super().__init__(ctx, combine=combine, channels=ctx.tokens.axes)
        self.dim = ctx.dim
        self.steps = [step or token_norm(ctx) / max(1, side - 1) for side in ctx.tokens.grid]

    def encoding(self, coords: Tensor, like: Tensor) -> Tensor:
        """Return coords (B|1, N, A) times their steps: (B|1, N, A), if added zero-padded to D."""
        exact = torch.promote_types(coords.dtype, torch.float32)
        axes = coords.to(exact).unbind(-1)
        encoding = torch.stack([p * step for p, step in zip(axes, self.steps, strict=True)], dim=-1)  # (B|1, N, A)
        if self.combine == "add":
            encoding = F.pad(encoding, (0, self.dim - self.channels))  # (B|1, N, D)
        return encoding.to(like.dtype)
