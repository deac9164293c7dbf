"""Sinusoidal positions: fixed waves of falling frequency, added to the token or put beside it.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.5
Reference: the tensor2tensor form, sines first and cosines after; 2-D as in MAE (He et al. 2022, arXiv 2111.06377)
Equation: x_t + [sin(p w_i), cos(p w_i)], w_i = base^(-2i / D)
Cost: O(N D) time, no parameters

A step of t places turns each pair (sin, cos) by the angle t w_i, wherever it starts: that is what the
cosines are for. Sines alone tell places apart, but no fixed map takes one place to the next.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from blockyard.contracts import Context, Count, Positive
from blockyard.position._absolute import Absolute, Combine, code_width
from blockyard.position._axes import check_axes, check_split


class Sinusoidal(Absolute):
    """Waves over each axis in its own part of the channels; known for every coordinate.

    Options:
        waves: halves has an axis' sines first and its cosines after, interleaved has them in turn, sines has
            sines only, of twice as many frequencies
        base: the longest wave is 2 pi base tokens
        scale: height of the waves; null means the size of the vectors they are added to, the model's init_std,
            and sqrt(D) times as much with tokenizer.scale=sqrt_dim, the paper's
        width: channels of a concatenated code; null means a quarter of model.dim
    """

    def __init__(
        self,
        ctx: Context,
        *,
        waves: Literal["halves", "interleaved", "sines"] = "halves",
        base: Positive = 10000.0,
        scale: Positive | None = None,
        combine: Combine = "add",
        width: Count | None = None,
    ) -> None:
        check_axes(type(self), ctx)
        axes, group = ctx.tokens.axes, 1 if waves == "sines" else 2
        channels = code_width("sinusoidal", ctx, combine, width, group * axes)
        check_split("sinusoidal", channels, "model.dim", axes, group)
        super().__init__(ctx, combine=combine, channels=channels)
        self.waves, self.base, self.count = waves, base, channels // (group * axes)
        self.scale = ctx.token_std if scale is None else scale

    def code(self, coords: Tensor, like: Tensor) -> Tensor:
        """Waves of coords (B|1, N, A): (B|1, N, channels), an axis after the other."""
        exact = torch.promote_types(coords.dtype, torch.float32)
        step = torch.arange(self.count, device=like.device, dtype=exact) / self.count
        angle = coords.to(exact)[..., None] * self.base**-step  # (B|1, N, A, frequencies)
        if self.waves == "sines":
            waves = angle.sin()
        elif self.waves == "halves":
            waves = torch.cat([angle.sin(), angle.cos()], dim=-1)
        else:
            waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
        return self.scale * waves.flatten(2).to(like.dtype)  # (B|1, N, channels)
