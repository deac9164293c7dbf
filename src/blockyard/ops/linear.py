"""Linear layers with declared initial weights.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3: layers that write into
the residual stream start smaller by the square root of the number of residual layers. Zhang et al. 2019, Fixup
Initialization (arXiv 1901.09321), section 3: they start at zero, so that every block starts as the identity.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Place, Role
from blockyard.weight_init import Init


class Linear(nn.Linear):
    """A linear layer that starts with normal weights of standard deviation `std` and zero bias.

    The weights of outputs from `content` on start with a standard deviation of `gain` times `std`.

    fades: as of a token mixer
    role: of the weights; by it a parametrization decides on their learning rate, and refuses None
    factor: on the inputs of the weights, and not on the bias
    """

    fades: str | None = None

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        bias: bool,
        std: float,
        role: Role | None = None,
        content: int = 0,
        gain: float = 1.0,
        factor: float = 1.0,
    ) -> None:
        self.std, self.content, self.gain, self.factor = std, content, gain, factor
        self.roles: dict[str, Role] = {"bias": "fixed" if role in ("output", "fixed") else "vector"}
        if role is not None:
            self.roles["weight"] = role
        super().__init__(d_in, d_out, bias=bias)

    def reset_parameters(self) -> None:
        """Draw torch's initial weights, except on the meta device, where torch takes 1 ms to draw nothing."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def init_weights(self, init: Init) -> None:
        """Draw normal weights; the bias is zero."""
        init.normal("weight", std=self.std)
        init.zeros("bias")
        if self.gain != 1.0 and not self.weight.is_meta:
            with torch.no_grad():
                self.weight[self.content :] *= self.gain

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_out)."""
        return super().forward(x if self.factor == 1.0 else x * self.factor)


def linear(ctx: Context, d_in: int, d_out: int, *, bias: bool = False, content: int | None = None) -> Linear:
    """Return a layer inside the model: both of its sizes grow with the width of the model.

    content: the first output that carries content (values, hidden channels) rather than deciding where to look
        (queries, keys); a block may start outputs with content smaller, by `ctx.gain`
    """
    gain = 1.0 if content is None or ctx.gain is None else ctx.gain
    return Linear(d_in, d_out, bias=bias, std=ctx.init_std, role="hidden", content=content or 0, gain=gain)


def residual(ctx: Context, d_in: int, d_out: int, *, bias: bool = False) -> Linear:
    """Return a layer that writes into the residual stream."""
    return Linear(d_in, d_out, bias=bias, std=ctx.init_std * residual_gain(ctx), role="residual")


def output(
    ctx: Context, d_in: int, d_out: int, *, bias: bool = False, gain: float = 1.0, place: Place = "output"
) -> Linear:
    """Return a layer with a number of outputs that does not depend on the width of the model.

    gain: factor on the initial standard deviation
    place: logits for the last layer of a head
    """
    std = ctx.init_std * ctx.parametrization.std("output", ctx) * gain
    return Linear(d_in, d_out, bias=bias, std=std, role="output", factor=ctx.parametrization.factor(place, ctx))


def low_rank(ctx: Context, d_in: int, d_out: int, rank: int | None, *, bias: bool = False) -> nn.Module:
    """Return two layers with `rank` channels between them, a number that does not grow with the model; one for None."""
    if rank is None:
        return linear(ctx, d_in, d_out, bias=bias)
    return nn.Sequential(linear(ctx, d_in, rank), Linear(rank, d_out, bias=bias, std=rank**-0.5, role="input"))


def residual_gain(ctx: Context) -> float:
    """Return the factor on the initial standard deviation of layers that write into the residual stream.

    Empty branches count too, so that the initial weights of a mixer do not depend on the other mixer.
    """
    if ctx.zero_branches:
        return 0.0
    visits = ctx.parametrization.base_visits(ctx)
    if ctx.gain is None:
        return 1 / math.sqrt(ctx.branches * visits)
    return ctx.gain
