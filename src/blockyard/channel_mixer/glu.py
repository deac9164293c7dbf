"""Gated linear unit (SwiGLU, GEGLU, ReGLU, GLU, bilinear): one half of the hidden channels gates the other.

Source: Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202), eq. 6; OpenAI 2025, gpt-oss-120b &
    gpt-oss-20b Model Card (arXiv 2508.10925), for limit and offset; Loshchilov et al. 2024, nGPT (arXiv 2410.01131),
    eq. 20 and 21, for gains
Reference: timm layers/mlp.py, SwiGLU; transformers LlamaMLP, GptOssExperts
Equation: W2 (f(W1 x) * V x); with a limit c and an offset o W2 (f(min(W1 x, c)) * (o + min(max(V x, -c), c)));
    with gains a W1 x in place of W1 x and b V x in place of V x, with one trained number for each hidden channel
Cost: O(N D E) time with E hidden channels, 3 D E parameters
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import ChannelMixer, Context, Expansion, NonNegative, Positive, Rate, Seq
from blockyard.ops.linear import linear, residual
from blockyard.ops.scaled_vector import ScaledVector


class GLU(ChannelMixer):
    """An expansion of 8/3 gives as many weights as an MLP with 4; hidden widths are multiples of 8.

    Options:
        expansion: hidden width as a multiple of model.dim, rounded to the nearest multiple of 8
        activation: activation of the gate; silu is SwiGLU, gelu GEGLU, relu ReGLU, sigmoid GLU, identity bilinear,
            quick_gelu gpt-oss'
        limit: bound of the gate from above, and of the value from both sides; 7 in gpt-oss, null means none
        offset: number added to the value; 1 in gpt-oss, with which a value of 0 passes the gate alone
        gains: trained factors on gate and value of each hidden channel: none; one starts them at one; sqrt_dim also
            multiplies the gate by sqrt(model.dim), for inputs of length one as in nGPT
        bias: use biases on all layers
        dropout: dropout rate on the gated channels
    """

    hidden_multiple: ClassVar[int] = 8

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 2.667,
        activation: Literal["sigmoid", "identity", "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"] = "silu",
        limit: Positive | None = None,
        offset: NonNegative = 0.0,
        gains: Literal["none", "one", "sqrt_dim"] = "none",
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        multiple = self.hidden_multiple
        hidden = max(multiple, multiple * round(expansion * ctx.dim / multiple))
        self.activation = ACTIVATIONS[activation]
        self.limit = limit
        self.offset = offset
        self.proj_in = linear(ctx, ctx.dim, 2 * hidden, bias=bias, content=0)  # gate, then value
        self.gains: ScaledVector | None = None
        if gains != "none":
            self.gains = ScaledVector(ctx, 2 * hidden, scale=1.0)
            self.gate_factor = (ctx.dim / ctx.width_ratio) ** 0.5 if gains == "sqrt_dim" else 1.0
        self.dropout = nn.Dropout(dropout)
        self.proj_out = residual(ctx, hidden, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(self.mix(self.proj_in(x)))

    def mix(self, h: Tensor) -> Tensor:
        """Apply the gate between the projections: (B, N, 2 hidden) -> (B, N, hidden)."""
        if self.gains is not None:
            h = h * self.gains().to(h.dtype)
        gate, value = h.chunk(2, dim=-1)
        if self.gains is not None and self.gate_factor != 1.0:
            gate = gate * self.gate_factor
        if self.limit is not None:
            gate = gate.clamp(max=self.limit)  # the activation bounds it from below
            value = value.clamp(-self.limit, self.limit)
        if self.offset:
            value = value + self.offset
        return self.dropout(self.activation(gate) * value)
