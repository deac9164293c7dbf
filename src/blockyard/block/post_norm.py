"""Post-norm: the stream is normalised after each branch is added to it, as in the first transformer.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.1
Reference: torch.nn.TransformerEncoderLayer with norm_first=False
Equation: norm(x + token(x)), then norm(x + channel(x))
Cost: that of its mixers

    x --+--> token mixer --(+)--> norm --+--> channel mixer --(+)--> norm --> x
        |                   |            |                     |
        +-------------------+            +---------------------+
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Seq
from blockyard.contracts.inherited_options import with_options_of


class PostNorm(BranchedBlock):
    """The original block. Its output is normalised; deep stacks need a warm-up.

    Options:
        first_norm: normalise the stream before the first block too, as in BERT
    """

    needs_final_norm: ClassVar[bool] = False
    adds: ClassVar[bool] = False

    @with_options_of(BranchedBlock)
    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        first_norm: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(ctx, token_mixer, channel_mixer, norm, **options)
        if first_norm and ctx.order is not None and (ctx.order[0] != 0 or ctx.order.count(0) > 1):
            raise ValueError(
                f"block.first_norm=true normalises where block 0 begins, and model.order={list(ctx.order)} visits it "
                "later or again; use model.embed_norm=true, which normalises once, in front of all blocks"
            )
        # Of block 0 alone: each block normalises its own output.
        self.first_norm = norm(ctx) if first_norm and ctx.layer == 0 else nn.Identity()

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        x = self.first_norm(x)
        if self.token_norm is not None:
            x = self.token_norm(x + self.drop(self._token(x, seq, cache, memory)))
        if self.cross_norm is not None:
            x = self.cross_norm(x + self.drop(self._cross(x, seq, memory)))
        if self.channel_norm is not None:
            x = self.channel_norm(x + self.drop(self.channel_mixer(x, seq)))
        return x
