"""Elman recurrent network (RNN): the state is a nonlinearity of the token plus the previous state.

Source: Elman 1990, Finding Structure in Time, Cognitive Science 14
Reference: torch.nn.RNN
Equation: h_t = tanh(W x_t + U h_(t-1) + b)
Cost: O(N (D E + E^2)) time, sequential in N; a decoding step takes constant time and memory
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import nn

from blockyard.contracts import Context, Expansion
from blockyard.token_mixer._recurrent import Recurrent


class RNN(Recurrent):
    """The plain recurrent baseline.

    Options:
        nonlinearity: activation of the new state
        expansion: state channels, both directions together, as a multiple of model.dim
        bias: use biases in the cell and in the projection
    """

    def __init__(
        self,
        ctx: Context,
        *,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        expansion: Expansion = 1.0,
        bias: bool = True,
    ) -> None:
        super().__init__(ctx, partial(nn.RNN, nonlinearity=nonlinearity), expansion, bias)
