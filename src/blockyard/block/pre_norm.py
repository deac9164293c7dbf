"""Pre-norm: each mixer reads a normalised copy of the stream and adds to the stream itself.

Source: Xiong et al. 2020, On Layer Normalization in the Transformer Architecture (arXiv 2002.04745), table 1
Reference: timm models/vision_transformer.py, Block
Equation: x + token(norm(x)), then x + channel(norm(x))
Cost: that of its mixers

    x --+--> norm --> token mixer --(+)--+--> norm --> channel mixer --(+)--> x
        |                            |   |                              |
        +----------------------------+   +------------------------------+
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Rate, Seq


class PreNorm(BranchedBlock):
    """The stream itself is not normalised, so the model has a final norm after the last block.

    Options:
        dropout: dropout rate on the output of each mixer
        drop_path: stochastic depth: rate at which a sample skips a branch of the last block; linearly less before it
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
        super().__init__(ctx, token_mixer, channel_mixer, norm, dropout, drop_path)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = x + self.drop(self._token(self.token_norm(x), seq, cache, memory))
        if self.cross_norm is not None:
            x = x + self.drop(self._cross(self.cross_norm(x), seq, memory))
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_mixer(self.channel_norm(x), seq))
        return x
