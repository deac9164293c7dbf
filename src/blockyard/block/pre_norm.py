"""Pre-norm: each mixer reads a normalised copy of the stream and adds to the stream itself.

Source: Xiong et al. 2020, On Layer Normalization in the Transformer Architecture (arXiv 2002.04745), table 1; Sun et
    al. 2025, The Curse of Depth in Large Language Models (arXiv 2502.05795), for depth_scaled
Reference: timm models/vision_transformer.py, Block; OLMo-core LayerNormScaledTransformerBlock
Equation: x + token(norm(x)), then x + channel(norm(x)); with depth_scaled norm(x) / sqrt(l) in block l, from 1
Cost: that of its mixers

    x --+--> norm --> token mixer --(+)--+--> norm --> channel mixer --(+)--> x
        |                            |   |                              |
        +----------------------------+   +------------------------------+
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Seq
from blockyard.contracts.inherited_options import with_options_of


class PreNorm(BranchedBlock):
    """The stream itself is not normalised, so the model has a final norm after the last block.

    Options:
        depth_scaled: divide the outputs of norms by the square root of the number of the block, so that later blocks
            add less and the variance of the stream grows slower (LN scaling)
        norm_tokens: normalise the input of the token mixer; false in the first block of ModernBERT, behind a norm of
            the embeddings (model.embed_norm)
    """

    @with_options_of(BranchedBlock)
    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        depth_scaled: bool = False,
        norm_tokens: bool = True,
        **options: Any,
    ) -> None:
        self.depth_scaled = depth_scaled  # read by `_scaled`
        super().__init__(ctx, token_mixer, channel_mixer, self._scaled(norm), **options)
        if not norm_tokens and self.token_norm is not None:
            self.token_norm = nn.Identity()

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """Add a branch that reads the memory, with the same kind of norm as the others."""
        super().add_cross(ctx, mixer, self._scaled(norm))

    def _scaled(self, norm: NormFactory) -> NormFactory:
        if self.depth_scaled:
            return partial(ScaledNorm, norm)
        return norm

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = x + self.drop(self._token(self.token_norm(x), seq, cache, memory))
        if self.cross_norm is not None:
            x = x + self.drop(self._cross(self.cross_norm(x), seq, memory))
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_mixer(self.channel_norm(x), seq))
        return x


class ScaledNorm(nn.Module):
    """norm(x) / sqrt(l) in block l, counted from 1."""

    def __init__(self, norm: NormFactory, ctx: Context) -> None:
        super().__init__()
        self.norm = norm(ctx)
        self.factor = (ctx.layer + 1) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        y: Tensor = self.norm(x) * self.factor
        return y
