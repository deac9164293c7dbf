"""DeepNorm: post-norm with a larger weight on the stream and smaller initial branches, both by depth.

Source: Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers (arXiv 2203.00555), figure 2
Reference: none in torch, timm or transformers (microsoft/torchscale has the authors')
Equation: norm(alpha x + token(x)), then norm(alpha x + channel(x))
Cost: that of its mixers

    x --+--> token mixer --(+)--> norm --+--> channel mixer --(+)--> norm --> x
        |                   |            |                     |
        +------> alpha -----+            +------> alpha -------+

    blocks                        alpha                  beta
    encoder alone, N              (2 N)^(1/4)            (8 N)^(-1/4)
    decoder alone, M              (2 M)^(1/4)            (8 M)^(-1/4)
    encoder with a decoder        0.81 (N^4 M)^(1/16)    0.87 (N^4 M)^(-1/16)
    decoder with an encoder       (3 M)^(1/4)            (12 M)^(-1/4)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Seq
from blockyard.contracts.inherited_options import with_options_of


def constants(ctx: Context) -> tuple[float, float]:
    """Return alpha, the weight of the stream, and beta, the factor on initial weights: figure 2 of the paper."""
    if ctx.peer is None:
        return (2 * ctx.visits) ** 0.25, (8 * ctx.visits) ** -0.25
    if ctx.causal:
        return (3 * ctx.visits) ** 0.25, (12 * ctx.visits) ** -0.25
    both = ctx.visits**4 * ctx.peer
    return 0.81 * both ** (1 / 16), 0.87 * both ** (-1 / 16)


class DeepNorm(BranchedBlock):
    """Post-norm for deep stacks. beta scales values, hidden layers and outputs, not queries and keys.

    It replaces the factor 1 / sqrt(branches depth) on outputs of other blocks. In a mixer that does not declare the
    weights that carry content (`ops.linear`), it scales the outputs alone.
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
        **options: Any,
    ) -> None:
        alpha, beta = constants(ctx)
        super().__init__(replace(ctx, gain=beta), token_mixer, channel_mixer, norm, **options)
        self.alpha = alpha
        self.beta = beta
        self.expects_cross = ctx.peer is not None and ctx.causal

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """Add a branch that reads the memory. Raises ValueError outside the decoder of an encoder-decoder."""
        if not self.expects_cross:
            raise ValueError(
                "block DeepNorm has constants for cross-attention only in the decoder of an encoder-decoder; "
                "use block=pre_norm or model=encoder_decoder"
            )
        super().add_cross(replace(ctx, gain=self.beta), mixer, norm)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = self.token_norm(self.alpha * x + self.drop(self._token(x, seq, cache, memory)))
        if self.cross_norm is not None:
            x = self.cross_norm(self.alpha * x + self.drop(self._cross(x, seq, memory)))
        if self.channel_norm is not None:
            x = self.channel_norm(self.alpha * x + self.drop(self.channel_mixer(x, seq)))
        return x
