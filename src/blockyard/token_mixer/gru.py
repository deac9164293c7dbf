"""Gated recurrent unit: gates decide how much of the state is kept and how much of it the new one reads.

Source: Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder (arXiv 1406.1078), section 2.3
Reference: torch.nn.GRU
Equation: h_t = z h_(t-1) + (1 - z) n; n = tanh(W x_t + r (U h_(t-1))), r and z sigmoids of x_t and h_(t-1)
Cost: O(N (D E + E^2)) time, one token after the other; a decoding step takes the same time and memory at any length
"""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Context, Positive
from blockyard.token_mixer._recurrent import Recurrent


class GRU(Recurrent):
    """A recurrent baseline with two gates.

    Options:
        expansion: channels of the state, of both directions together, as a multiple of model.dim
        bias: biases in the cell and in the projection
    """

    def __init__(self, ctx: Context, *, expansion: Positive = 1.0, bias: bool = True) -> None:
        super().__init__(ctx, nn.GRU, expansion, bias)
