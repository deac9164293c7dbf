"""Layer normalisation: zero mean and unit variance over the channels, then a gain and a bias.

Source: Ba et al. 2016, Layer Normalization (arXiv 1607.06450), eq. 4
Reference: torch.nn.LayerNorm
Equation: (x - mean(x)) / sqrt(var(x) + eps) * gain + bias
Cost: O(N D) time, 2 D parameters
"""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Context, Positive
from blockyard.weight_init import Init


class Layer(nn.LayerNorm):
    """The norm of the original Transformer.

    Options:
        eps: term added to the variance
        bias: learn a bias in addition to the gain
    """

    def __init__(self, ctx: Context, *, eps: Positive = 1e-5, bias: bool = True) -> None:
        super().__init__(ctx.dim, eps=eps, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Set gain one, bias zero."""
        init.ones("weight")
        init.zeros("bias")
