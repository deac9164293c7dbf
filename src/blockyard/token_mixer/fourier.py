"""Fourier mixing: the real part of a Fourier transform over tokens and channels, without weights.

Source: Lee-Thorp et al. 2022, FNet (arXiv 2105.03824), eq. 3
Reference: transformers models/fnet/modeling_fnet.py
Equation: Re(FFT_tokens(FFT_channels(x)))
Cost: O(N D log(N D)) time, no parameters
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.token_mixer._checks import check_call, check_context


class Fourier(TokenMixer):
    """Every output is a fixed mixture of every token and every channel.

    Options:
        scale: ortho preserves the norm of the input; none is the published form, sqrt(N D) times larger
    """

    traits = Traits(axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, *, scale: Literal["ortho", "none"] = "ortho") -> None:
        super().__init__()
        check_context(self, ctx)
        self.norm = "ortho" if scale == "ortho" else "backward"

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        # torch's FFT supports no half precision.
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return torch.fft.fft2(exact, dim=(1, 2), norm=self.norm).real.to(x.dtype)  # (B, N, D)
