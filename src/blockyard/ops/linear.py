"""Linear layers with declared initial weights.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3: what
writes into the residual stream starts smaller by the square root of the number of residual layers.
"""

from __future__ import annotations

import math

from torch import nn

from blockyard.contracts import Context
from blockyard.init import Init


class Linear(nn.Linear):
    """A linear layer whose weights start normal with `std`, and whose bias starts at zero."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool, std: float) -> None:
        self.std = std
        super().__init__(d_in, d_out, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Normal weights, zero bias."""
        init.normal("weight", std=self.std)
        init.zeros("bias")


def linear(ctx: Context, d_in: int, d_out: int, *, bias: bool = False) -> Linear:
    """A layer that starts with the model's own spread."""
    return Linear(d_in, d_out, bias=bias, std=ctx.init_std)


def residual(ctx: Context, d_in: int, d_out: int, *, bias: bool = False) -> Linear:
    """A layer that writes into the residual stream: two of those in each of `depth` blocks."""
    return Linear(d_in, d_out, bias=bias, std=ctx.init_std / math.sqrt(2 * ctx.depth))
