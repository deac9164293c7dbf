"""One-hot positions: a channel for each place of each axis, and a one in it.

Source: Gehring et al. 2017 (arXiv 1705.03122), section 3.1: what its table of vectors is multiplied with
Reference: torch.nn.functional.one_hot
Equation: x_t + scale e_p; on a grid, a one for the row and a one for the column
Cost: O(N D) time, no parameters, as many channels as the sides of the grid have places
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Positive
from blockyard.position._absolute import Absolute, Combine, token_size
from blockyard.position._axes import check_axes


class OneHot(Absolute):
    """All places are equally far from each other. Coordinates between places share the one out between both.

    Options:
        scale: height of the one; null means the size of a fresh token's vector
    """

    bounded: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, scale: Positive | None = None, combine: Combine = "add") -> None:
        check_axes(type(self), ctx)
        self.grid = ctx.tokens.grid
        super().__init__(ctx, combine=combine, channels=sum(self.grid))
        if self.channels > ctx.dim:
            raise ValueError(
                f"position one_hot needs a channel for each place, {self.channels} in all, and model.dim={ctx.dim} has "
                f"fewer; use model.dim={self.channels} or more, shorter rows, or position=learned"
            )
        self.dim, self.scale = ctx.dim, token_size(ctx) if scale is None else scale

    def code(self, coords: Tensor, like: Tensor) -> Tensor:
        """A one for each axis of coords (B|1, N, A): (B|1, N, sum of sides), filled up where it is added."""
        exact = torch.promote_types(coords.dtype, torch.float32)
        ones = []
        for axis, side in enumerate(self.grid):
            place = coords[..., axis, None].to(exact).clamp(0, side - 1)  # (B|1, N, 1)
            every = torch.arange(side, device=coords.device, dtype=exact)
            ones.append((1 - (place - every).abs()).clamp(min=0))  # (B|1, N, side)
        code = torch.cat(ones, dim=-1)
        if self.combine == "add":
            code = F.pad(code, (0, self.dim - self.channels))  # (B|1, N, D)
        return self.scale * code.to(like.dtype)
