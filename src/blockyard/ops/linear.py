"""Linear layers with declared initial weights.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3: what
writes into the residual stream starts smaller by the square root of the number of residual layers.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from blockyard.contracts import Context
from blockyard.weight_init import Init


class Linear(nn.Linear):
    """A linear layer that starts with normal weights of standard deviation `std` and zero bias.

    The weights of outputs from `content` on start with `gain` times that.
    """

    def __init__(self, d_in: int, d_out: int, *, bias: bool, std: float, content: int = 0, gain: float = 1.0) -> None:
        self.std, self.content, self.gain = std, content, gain
        super().__init__(d_in, d_out, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Normal weights, zero bias."""
        init.normal("weight", std=self.std)
        init.zeros("bias")
        if self.gain != 1.0 and not self.weight.is_meta:
            with torch.no_grad():
                self.weight[self.content :] *= self.gain


def linear(ctx: Context, d_in: int, d_out: int, *, bias: bool = False, content: int | None = None) -> Linear:
    """Returns a layer whose weights start with the model's standard deviation.

    content: the first output that carries content (values, hidden channels) rather than deciding where to look
        (queries, keys); a block may start those outputs smaller, by `ctx.gain`
    """
    gain = 1.0 if content is None or ctx.gain is None else ctx.gain
    return Linear(d_in, d_out, bias=bias, std=ctx.init_std, content=content or 0, gain=gain)


def residual(ctx: Context, d_in: int, d_out: int, *, bias: bool = False) -> Linear:
    """Returns a layer that writes into the residual stream."""
    return Linear(d_in, d_out, bias=bias, std=ctx.init_std * residual_gain(ctx))


def residual_gain(ctx: Context) -> float:
    """Returns the factor on the initial standard deviation of what writes into the residual stream.

    Empty branches count too, so that the initial weights of a mixer do not depend on the other mixer.
    """
    return 1 / math.sqrt(ctx.branches * ctx.visits) if ctx.gain is None else ctx.gain
