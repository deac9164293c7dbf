"""Convolution over tokens: a weighted sum of the neighbours, with weights across channels.

Source: LeCun et al. 1989, Backpropagation Applied to Handwritten Zip Code Recognition; causal form as in
    van den Oord et al. 2016, WaveNet (arXiv 1609.03499), and on grids PixelRNN (arXiv 1601.06759), masks
Reference: torch.nn.Conv1d, torch.nn.Conv2d
Equation: y_i = sum_s W_s x_(i+s)
Cost: O(N D^2 kernel^A) time; decoding keeps the last kernel - 1 inputs

      line            causal line       grid           causal grid
    . s s s .         s s s . .       . s s s .         . s s s .
        ^                 ^           . s s s .         . s s . .
                                      . s s s .         . . . . .
"""

from __future__ import annotations

from blockyard.contracts import Context, Side
from blockyard.token_mixer._convolution import Convolution


class Conv(Convolution):
    """Convolves the line or the grid; padding, other documents and the outside count as zero.

    Options:
        kernel: side of the neighbourhood in tokens; odd, except on a causal line, where it reaches back only
        bias: add a learned bias to each channel
    """

    def __init__(self, ctx: Context, *, kernel: Side = 3, bias: bool = True) -> None:
        super().__init__(ctx, kernel, bias, groups=1)
