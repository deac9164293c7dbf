"""Gated linear unit: one half of the hidden channels gates the other; SwiGLU, GEGLU, ReGLU, GLU, Bilinear.

Source: Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202), eq. 6
Reference: timm layers/mlp.py, SwiGLU; transformers LlamaMLP
Equation: W2 (f(W1 x) * V x)
Cost: O(N D E) time with E hidden channels, 3 D E parameters
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import ChannelMixer, Context, Positive, Rate
from blockyard.ops.linear import linear, residual


class GLU(ChannelMixer):
    """With expansion 8/3 it has as many weights as an MLP with 4; widths are multiples of 8.

    Options:
        expansion: hidden width as a multiple of model.dim, rounded to the nearest multiple of 8
        activation: of the gate; silu is SwiGLU, gelu GEGLU, relu ReGLU, sigmoid the first GLU, identity Bilinear
        bias: biases on all layers
        dropout: rate on the gated channels while training
    """

    hidden_multiple: ClassVar[int] = 8

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Positive = 2.667,
        activation: Literal["sigmoid", "identity", "silu", "gelu", "gelu_tanh", "relu", "relu2"] = "silu",
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        step = self.hidden_multiple
        hidden = max(step, step * round(expansion * ctx.dim / step))
        self.activation = ACTIVATIONS[activation]
        self.proj_in = linear(ctx, ctx.dim, 2 * hidden, bias=bias, content=0)  # gate first, then what it gates
        self.dropout = nn.Dropout(dropout)
        self.proj_out = residual(ctx, hidden, ctx.dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(self.mix(self.proj_in(x)))

    def mix(self, h: Tensor) -> Tensor:
        """What lies between the projections: (B, N, 2 hidden) -> (B, N, hidden)."""
        gate, value = h.chunk(2, dim=-1)
        return self.dropout(self.activation(gate) * value)
