"""Recurrent network of Elman: the state is a squashed sum of the token and the last state.

Source: Elman 1990, Finding Structure in Time, Cognitive Science 14
Reference: torch.nn.RNN
Equation: h_t = tanh(W x_t + U h_(t-1) + b)
Cost: O(N (D E + E^2)) time, one token after the other; a decoding step takes the same time and memory at any length
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import nn

from blockyard.contracts import Context, Positive
from blockyard.token_mixer._recurrent import Recurrent


class RNN(Recurrent):
    """The plain recurrent baseline.

    Options:
        nonlinearity: what squashes the sum
        expansion: channels of the state, of both directions together, as a multiple of model.dim
        bias: biases in the cell and in the projection
    """

    def __init__(
        self,
        ctx: Context,
        *,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        expansion: Positive = 1.0,
        bias: bool = True,
    ) -> None:
        super().__init__(ctx, partial(nn.RNN, nonlinearity=nonlinearity), expansion, bias)
