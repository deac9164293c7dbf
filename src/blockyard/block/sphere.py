"""Sphere: the stream has length one, and each mixer turns it some way towards its own direction, by trained rates.

Source: Loshchilov et al. 2024, nGPT: Normalized Transformer with Representation Learning on the Hypersphere
    (arXiv 2410.01131), eq. 10 and 11
Reference: the equations, in the tests; NVIDIA/ngpt model.py, which takes rates as sizes |a| too
Equation: u(x + |a| (u(token(norm(x))) - x)), then u(x + |b| (u(channel(norm(x))) - x)), with u(x) = x / |x|, and a, b
    of one number for each channel; the paper's has norm=none
Cost: that of its mixers, and O(N D) time

    x --+--> norm --> token mixer --> u --> a (. - x) --(+)--> u --+--> norm --> channel mixer --> ... --> x
        |                                                |         |
        +------------------------------------------------+         +---->

    blockyard train preset=ngpt optimizer.weight_decay=0 schedule.warmup=0

Beside this block nGPT has matrices of vectors of length one (model.unit_weights), queries and keys of length one
(token_mixer.qk_norm=sphere), and trained factors on the hidden channels (channel_mixer.gains=sqrt_dim) and on the
logits (head.gain).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Positive, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.scaled_vector import ScaledVector

EPS = 1e-6  # the smallest divisor: an output of almost zero has no direction


class Step(nn.Module):
    """Moves a stream of length one towards the direction of a mixer's output: forward(x, y, drop) -> (B, N, D)."""

    def __init__(self, ctx: Context, first: float, scale: float | None) -> None:
        super().__init__()
        self.rate = ScaledVector(ctx, ctx.dim, first=first, scale=scale)
        self.radius = radius(ctx)

    def forward(self, x: Tensor, y: Tensor, drop: nn.Module) -> Tensor:
        """x (B, N, D) of length one, y (B, N, D) -> (B, N, D) of length one."""
        step = drop(self.rate().abs() * (of_length(self.radius, y) - x))
        return of_length(self.radius, x + step)


def radius(ctx: Context) -> float:
    """Return the length of the stream: one, or under a parametrization one at the base width."""
    # A longer vector of more channels keeps the size of each channel.
    return ctx.width_ratio**0.5


def of_length(length: float, x: Tensor) -> Tensor:
    """Return vectors (..., D) of a length; zero stays zero."""
    y = F.normalize(x, dim=-1, eps=EPS)
    return y if length == 1.0 else y * length


class Sphere(BranchedBlock):
    """Each block first brings the stream to length one, so that the first block may follow any tokens.

    Options:
        rate: first value of the rates; about 1 / model.depth
        rate_scale: first value of the parameter behind a rate; a smaller one learns faster; null is 1 / sqrt(model.dim)
        dropout: dropout rate on the step that each mixer takes
    """

    adds = False
    against_zero: ClassVar[str | None] = "norms what a branch gives, and zeros have no direction"

    @with_options_of(BranchedBlock)
    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        rate: Positive = 0.05,
        rate_scale: Positive | None = None,
        **options: Any,
    ) -> None:
        self.rate = rate  # both are read by the constructor
        self.rate_scale = rate_scale
        super().__init__(ctx, token_mixer, channel_mixer, norm, **options)
        self.radius = radius(ctx)

    def finish(self) -> nn.Module:
        """Return the step of a branch."""
        return Step(self.ctx, self.rate, self.rate_scale)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        x = of_length(self.radius, x)
        if self.token_norm is not None:
            x = self.token_finish(x, self._token(self.token_norm(x), seq, cache, memory), self.drop)
        if self.cross_norm is not None:
            x = self.cross_finish(x, self._cross(self.cross_norm(x), seq, memory), self.drop)
        if self.channel_norm is not None:
            x = self.channel_finish(x, self.channel_mixer(self.channel_norm(x), seq), self.drop)
        return x
