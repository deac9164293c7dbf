"""Sandwich: a norm before and one after each mixer, the second on what joins the stream.

Source: Ding et al. 2021, CogView (arXiv 2105.13290), section 2.4 (Sandwich-LN)
Reference: transformers Gemma2DecoderLayer
Equation: x + norm(token(norm(x))), then x + norm(channel(norm(x)))
Cost: that of its mixers, and four norms

    x --+--> norm --> token mixer --> norm --(+)--+--> norm --> channel mixer --> norm --(+)--> x
        |                                     |   |                                      |
        +-------------------------------------+   +--------------------------------------+
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from blockyard.block._base import ChannelFactory, MixerFactory, NormFactory, TwoBranches
from blockyard.contracts import Context, Rate


class Sandwich(TwoBranches):
    """What a branch adds has a size that no weight before the second norm decides.

    Options:
        dropout: rate on what each mixer adds, while training
        drop_path: rate at which a sample skips a mixer of the last block while training; earlier ones less
    """

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, token_mixer, channel_mixer, norm, dropout, drop_path, finish=lambda: norm(ctx))

    def given(self, y: Tensor) -> Tensor:
        """y (B, N, D) in the type of the norm that follows: one of two types would cost the fused kernel."""
        weights = (p for norm in (self.token_norm, self.channel_norm) if norm is not None for p in norm.parameters())
        return y.to(next(weights, y).dtype)

    def join(self, x: Tensor, norm: nn.Module, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return x + self.branch(mixer(norm(x)))
