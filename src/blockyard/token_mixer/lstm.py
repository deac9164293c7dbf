"""Long short-term memory (LSTM): a cell in addition to the state, written and read through gates.

Source: Hochreiter and Schmidhuber 1997, Long Short-Term Memory; forget gate: Gers et al. 2000, Learning to Forget
Reference: torch.nn.LSTM
Equation: c_t = f c_(t-1) + i tanh(W x_t + U h_(t-1)), h_t = o tanh(c_t), f, i and o sigmoids of x_t and h_(t-1)
Cost: O(N (D E + E^2)) time, sequential in N; a decoding step takes constant time and memory
"""

from __future__ import annotations

from torch import nn

from blockyard.token_mixer._recurrent import Recurrent


class LSTM(Recurrent):
    """A recurrent baseline with three gates and a cell."""

    cell = nn.LSTM
