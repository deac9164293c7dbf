"""Depthwise convolution over tokens: a weighted sum of the neighbours, with separate weights per channel.

Source: Chollet 2017, Xception (arXiv 1610.02357); as a token mixer in Liu et al. 2022, A ConvNet for the 2020s
    (arXiv 2201.03545), and Yu et al. 2022, MetaFormer Baselines for Vision (arXiv 2210.13452)
Reference: torch.nn.Conv1d and Conv2d with as many groups as channels; timm models/convnext.py
Equation: y_ic = sum_s w_sc x_(i+s)c
Cost: O(N D kernel^A) time; decoding keeps the last kernel - 1 inputs
"""

from __future__ import annotations

from blockyard.contracts import Context, Side
from blockyard.token_mixer._convolution import Convolution


class DepthwiseConv(Convolution):
    """Convolves the line or the grid; padding, other documents and the outside count as zero.

    Options:
        kernel: side of the neighbourhood in tokens; odd, except on a causal line, where it reaches back only
        bias: add a learned bias to each channel
    """

    def __init__(self, ctx: Context, *, kernel: Side = 7, bias: bool = True) -> None:
        super().__init__(ctx, kernel, bias, groups=ctx.dim)
