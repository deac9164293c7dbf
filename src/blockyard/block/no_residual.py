"""No residual: the output of each mixer replaces the stream. It shows the use of residual connections.

Source: Dong et al. 2021, Attention is not all you need (arXiv 2103.03404), section 2: without skips a stack of
    attention makes all tokens alike, doubly exponentially fast
Reference: none in torch, timm or transformers
Equation: token(norm(x)), then channel(norm(x))
Cost: that of its mixers

    x --> norm --> token mixer --> norm --> channel mixer --> x
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Seq
from blockyard.contracts.inherited_options import with_options_of


class NoResidual(BranchedBlock):
    """Pre-norm without residual connections. It has no stochastic depth: a skipped branch would leave nothing."""

    adds: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    against_zero: ClassVar[str | None] = "passes on what a branch gives and nothing else"

    @with_options_of(BranchedBlock, without=("drop_path",))
    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        **options: Any,
    ) -> None:
        super().__init__(ctx, token_mixer, channel_mixer, norm, **options)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        # An addition would keep the type of the stream. Without one, half precision of a mixer would replace it.
        if self.token_norm is not None:
            x = self.drop(self._token(self.token_norm(x), seq, cache, memory)).to(x.dtype)
        if self.cross_norm is not None:
            x = self.drop(self._cross(self.cross_norm(x), seq, memory)).to(x.dtype)
        if self.channel_norm is not None:
            x = self.drop(self.channel_mixer(self.channel_norm(x), seq)).to(x.dtype)
        return x
