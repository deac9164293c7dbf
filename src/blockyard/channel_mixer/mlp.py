"""MLP: two linear layers with an activation between them, applied to each token.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), eq. 2; relu2 from So et al. 2021, Primer
    (arXiv 2109.08668)
Reference: timm layers/mlp.py, Mlp
Equation: W2 f(W1 x)
Cost: O(N D E) time with E hidden channels, 2 D E parameters
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import ChannelMixer, Context, Expansion, Rate, Seq
from blockyard.ops.linear import linear, residual


class MLP(ChannelMixer):
    """The channel mixer of the original Transformer.

    Options:
        expansion: hidden width as a multiple of model.dim
        activation: activation between the layers; gelu_tanh is GPT-2's, quick_gelu Image GPT's, relu2 the square of
            relu
        bias: use biases on both layers
        dropout: dropout rate on the hidden channels
    """

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 4.0,
        activation: Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu"] = "gelu",
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        hidden = max(1, round(expansion * ctx.dim))
        self.activation = ACTIVATIONS[activation]
        self.proj_in = linear(ctx, ctx.dim, hidden, bias=bias, content=0)
        self.dropout = nn.Dropout(dropout)
        self.proj_out = residual(ctx, hidden, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(self.mix(self.proj_in(x)))

    def mix(self, h: Tensor) -> Tensor:
        """Apply the activation between the projections: (B, N, hidden) -> (B, N, hidden)."""
        return self.dropout(self.activation(h))
