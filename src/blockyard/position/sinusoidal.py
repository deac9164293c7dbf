"""Sinusoidal positions: fixed sines and cosines of falling frequency, added to the token or concatenated.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.5
Reference: the tensor2tensor form, sines first and cosines after; 2-D as in MAE (He et al. 2022, arXiv 2111.06377)
Equation: x_t + [sin(p w_i), cos(p w_i)], w_i = base^(-2i / D)
Cost: O(N D) time, no parameters

Moving by t positions rotates each pair (sin, cos) by the angle t w_i, from any starting point. Sines alone distinguish
positions, but no fixed linear map takes one position to the next.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from blockyard.contracts import Context, Positive, Width
from blockyard.position._absolute import Absolute, Combine, check_axes, check_split, encoding_width


class Sinusoidal(Absolute):
    """Each axis has its own share of the channels. Defined for every coordinate.

    Options:
        waves: halves puts the sines of an axis before its cosines, interleaved alternates them, sines has twice as
            many sines and no cosines
        base: the longest wavelength is 2 pi base tokens
        scale: amplitude; null means the standard deviation of the token embedding: the model's init_std, times sqrt(D)
            with the paper's tokenizer.scale=sqrt_dim
        width: channels of a concatenated encoding; null means a quarter of model.dim
    """

    def __init__(
        self,
        ctx: Context,
        *,
        waves: Literal["halves", "interleaved", "sines"] = "halves",
        base: Positive = 10000.0,
        scale: Positive | None = None,
        combine: Combine = "add",
        width: Width | None = None,
    ) -> None:
        check_axes(type(self), ctx)
        axes = ctx.tokens.axes
        group = 1 if waves == "sines" else 2  # channels of a frequency
        channels = encoding_width("sinusoidal", ctx, combine, width, group * axes)
        check_split("sinusoidal", channels, "model.dim", axes, group)
        super().__init__(ctx, combine=combine, channels=channels)
        self.waves = waves
        self.base = base
        self.count = channels // (group * axes)  # frequencies of an axis
        self.scale = ctx.token_std if scale is None else scale

    def encoding(self, coords: Tensor, like: Tensor) -> Tensor:
        """Return sines and cosines of coords (B|1, N, A), one axis after the other: (B|1, N, channels)."""
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
