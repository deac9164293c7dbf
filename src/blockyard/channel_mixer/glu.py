"""Gated linear unit (SwiGLU, GEGLU, ReGLU, GLU, bilinear): one half of the hidden channels gates the other.

Source: Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202), eq. 6
Reference: timm layers/mlp.py, SwiGLU; transformers LlamaMLP
Equation: W2 (f(W1 x) * V x)
Cost: O(N D E) time with E hidden channels, 3 D E parameters
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import ChannelMixer, Context, Expansion, Rate, Seq
from blockyard.ops.linear import linear, residual


class GLU(ChannelMixer):
    """An expansion of 8/3 gives as many weights as an MLP with 4; hidden widths are multiples of 8.

    Options:
        expansion: hidden width as a multiple of model.dim, rounded to the nearest multiple of 8
        activation: activation of the gate; silu is SwiGLU, gelu GEGLU, relu ReGLU, sigmoid GLU, identity bilinear
        bias: use biases on all layers
        dropout: dropout rate on the gated channels
    """

    hidden_multiple: ClassVar[int] = 8

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 2.667,
        activation: Literal["sigmoid", "identity", "silu", "gelu", "gelu_tanh", "relu", "relu2"] = "silu",
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        multiple = self.hidden_multiple
        hidden = max(multiple, multiple * round(expansion * ctx.dim / multiple))
        self.activation = ACTIVATIONS[activation]
        self.proj_in = linear(ctx, ctx.dim, 2 * hidden, bias=bias, content=0)  # gate, then value
        self.dropout = nn.Dropout(dropout)
        self.proj_out = residual(ctx, hidden, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(self.mix(self.proj_in(x)))

    def mix(self, h: Tensor) -> Tensor:
        """The gate between the projections: (B, N, 2 hidden) -> (B, N, hidden)."""
        gate, value = h.chunk(2, dim=-1)
        return self.dropout(self.activation(gate) * value)
