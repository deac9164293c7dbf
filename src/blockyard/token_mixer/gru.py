"""Gated recurrent unit (GRU): gates decide how much of the state to keep and how much of it to read.

Source: Cho et al. 2014, Learning Phrase Representations using RNN Encoder-Decoder (arXiv 1406.1078), section 2.3
Reference: torch.nn.GRU
Equation: h_t = z h_(t-1) + (1 - z) n; n = tanh(W x_t + r (U h_(t-1))), r and z sigmoids of x_t and h_(t-1)
Cost: O(N (D E + E^2)) time, sequential in N; a decoding step takes constant time and memory
"""

from __future__ import annotations

from torch import nn

from blockyard.token_mixer._recurrent import Recurrent


class GRU(Recurrent):
    """A recurrent baseline with two gates."""

    cell = nn.GRU
