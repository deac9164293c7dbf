"""Sinusoidal positions: fixed waves of falling frequency, added to the token.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.5
Reference: the tensor2tensor form, sines first and cosines after; 2-D as in MAE (He et al. 2022, arXiv 2111.06377)
Equation: x_t + [sin(p w_i), cos(p w_i)], w_i = base^(-2i / D)
Cost: O(N D) time, no parameters
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Position, Positive
from blockyard.position._axes import check_axes, check_split


class Sinusoidal(Position):
    """Waves over each axis in its own part of the channels; known for every coordinate.

    Options:
        base: the longest wave is 2 pi base tokens
        scale: height of the waves; null means the model's init_std, the size of the vectors they are
            added to (the paper adds waves of height 1 to vectors multiplied by sqrt(D))
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"embed"})

    def __init__(self, ctx: Context, *, base: Positive = 10000.0, scale: Positive | None = None) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        check_split("sinusoidal", ctx.dim, "model.dim", ctx.tokens.axes)
        self.base, self.half = base, ctx.dim // (2 * ctx.tokens.axes)
        self.scale = ctx.init_std if scale is None else scale

    def embed(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (B, N, D) + waves of coords (B|1, N, A) -> (B, N, D)."""
        exact = torch.promote_types(coords.dtype, torch.float32)
        step = torch.arange(self.half, device=x.device, dtype=exact) / self.half
        angle = coords.to(exact)[..., None] * self.base**-step  # (B|1, N, A, D / 2A)
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(2)  # (B|1, N, D)
        return x + self.scale * waves.to(x.dtype)  # (B, N, D)
