"""Layer normalisation without gain and bias.

Source: Xu et al. 2019, Understanding and Improving Layer Normalization (arXiv 1911.07013), section 3
Reference: torch.nn.LayerNorm with elementwise_affine=False
Equation: (x - mean(x)) / sqrt(var(x) + eps)
Cost: O(N D) time, no parameters
"""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Context, Positive


class LayerPlain(nn.LayerNorm):
    """Has no parameters.

    Options:
        eps: term added to the variance
    """

    def __init__(self, ctx: Context, *, eps: Positive = 1e-5) -> None:
        super().__init__(ctx.dim, eps=eps, elementwise_affine=False)
