"""Root-mean-square normalisation: unit RMS over the channels, then a gain; the mean is not subtracted.

Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization (arXiv 1910.07467), eq. 4
Reference: torch.nn.RMSNorm
Equation: x / sqrt(mean(x^2) + eps) * gain
Cost: O(N D) time, D parameters
"""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Context, Positive
from blockyard.weight_init import Init


class RMS(nn.RMSNorm):
    """The norm of most language models since Llama.

    Options:
        eps: term added to the mean square
    """

    def __init__(self, ctx: Context, *, eps: Positive = 1e-6) -> None:
        super().__init__(ctx.dim, eps=eps)

    def init_weights(self, init: Init) -> None:
        """Gain one."""
        init.ones("weight")
