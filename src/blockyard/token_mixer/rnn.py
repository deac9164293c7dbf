"""Elman recurrent network (RNN): the state is a nonlinearity of the token plus the previous state.

Source: Elman 1990, Finding Structure in Time, Cognitive Science 14
Reference: torch.nn.RNN
Equation: h_t = tanh(W x_t + U h_(t-1) + b)
Cost: O(N (D E + E^2)) time, sequential in N; a decoding step takes constant time and memory
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from torch import nn

from blockyard.contracts import Context
from blockyard.contracts.inherited_options import with_options_of
from blockyard.token_mixer._recurrent import Recurrent


class RNN(Recurrent):
    """The plain recurrent baseline.

    Options:
        nonlinearity: activation of the new state
    """

    @with_options_of(Recurrent)
    def __init__(
        self,
        ctx: Context,
        *,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        **options: Any,
    ) -> None:
        self.cell = partial(nn.RNN, nonlinearity=nonlinearity)
        super().__init__(ctx, **options)
