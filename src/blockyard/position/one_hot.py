"""One-hot positions: one channel for each position of each axis.

Source: Gehring et al. 2017 (arXiv 1705.03122), section 3.1: the one-hot vectors in front of its table
Reference: torch.nn.functional.one_hot
Equation: x_t + scale e_p; on a grid, a one for the row and a one for the column
Cost: O(N D) time, no parameters, as many channels as the sum of the grid's sides
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Positive
from blockyard.position._absolute import Absolute, Combine, check_axes, token_norm


class OneHot(Absolute):
    """All positions are equally far from each other. Fractional coordinates are split between two neighbours.

    Options:
        scale: value of the one; null means the norm of a token embedding at initialisation
    """

    bounded: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, scale: Positive | None = None, combine: Combine = "add") -> None:
        check_axes(type(self), ctx)
        self.grid = ctx.tokens.grid
        super().__init__(ctx, combine=combine, channels=sum(self.grid))
        if self.channels > ctx.dim:
            raise ValueError(
                f"position one_hot needs a channel for each position, {self.channels} in all, and model.dim={ctx.dim} "
                f"has fewer; use model.dim={self.channels} or more, shorter sequences, or position=learned"
            )
        self.dim = ctx.dim
        self.scale = token_norm(ctx) if scale is None else scale

    def encoding(self, coords: Tensor, like: Tensor) -> Tensor:
        """Return a one for each axis of coords (B|1, N, A): (B|1, N, sum of sides), if added zero-padded to D."""
        exact = torch.promote_types(coords.dtype, torch.float32)
        ones = []
        for axis, side in enumerate(self.grid):
            coord = coords[..., axis, None].to(exact).clamp(0, side - 1)  # (B|1, N, 1)
            positions = torch.arange(side, device=coords.device, dtype=exact)
            # A fractional coordinate splits the one between its two neighbours.
            ones.append((1 - (coord - positions).abs()).clamp(min=0))  # (B|1, N, side)
        encoding = torch.cat(ones, dim=-1)  # (B|1, N, sum of sides)
        if self.combine == "add":
            encoding = F.pad(encoding, (0, self.dim - self.channels))  # (B|1, N, D)
        return self.scale * encoding.to(like.dtype)  # (B|1, N, channels or D)
