"""Root-mean-square normalisation: unit RMS over the channels, then a gain; the mean is not subtracted.

Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization (arXiv 1910.07467), eq. 4
Reference: torch.nn.RMSNorm; transformers Gemma2RMSNorm and Qwen3NextRMSNorm for zero_centred
Equation: x / sqrt(mean(x^2) + eps) * gain; with zero_centred (1 + gain)
Cost: O(N D) time, D parameters
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Positive
from blockyard.weight_init import Init


class RMS(nn.RMSNorm):
    """The norm of most language models since Llama.

    Options:
        eps: term added to the mean square
        zero_centred: learn the distance of the gain from one, as Gemma and Qwen3-Next do; with weight decay on gains,
            they then go to one
    """

    def __init__(self, ctx: Context, *, eps: Positive = 1e-6, zero_centred: bool = False) -> None:
        super().__init__(ctx.dim, eps=eps)
        self.zero_centred = zero_centred

    def init_weights(self, init: Init) -> None:
        """Set a gain of one."""
        if self.zero_centred:
            init.zeros("weight")
        else:
            init.ones("weight")

    @property
    def gain(self) -> Tensor:
        """The factor on each channel (D,)."""
        if self.zero_centred:
            return 1 + self.weight
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return F.rms_norm(x, self.normalized_shape, self.gain, self.eps)
