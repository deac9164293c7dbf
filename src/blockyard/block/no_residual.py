"""No residual: each mixer replaces the stream; what depth then does to tokens is the lesson.

Source: Dong et al. 2021, Attention is not all you need (arXiv 2103.03404), section 2: without skips a stack of
    attention makes all tokens alike, doubly exponentially fast
Reference: none in torch, timm or transformers
Equation: token(norm(x)), then channel(norm(x))
Cost: that of its mixers

    x --> norm --> token mixer --> norm --> channel mixer --> x
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from blockyard.block._base import ChannelFactory, MixerFactory, NormFactory, TwoBranches
from blockyard.contracts import Context, Rate


class NoResidual(TwoBranches):
    """A sample cannot skip a mixer here: nothing would be left of it.

    Options:
        dropout: rate on what each mixer gives, while training
    """

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, token_mixer, channel_mixer, norm, dropout, 0.0)

    def join(self, x: Tensor, norm: nn.Module, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, N, D) -> (B, N, D), in the type of x: where others add to the stream, this replaces it."""
        return self.branch(mixer(norm(x))).to(x.dtype)
