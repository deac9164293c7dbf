"""Key-value memory: each token attends to trained keys and reads trained values.

Source: Sukhbaatar et al. 2015, End-To-End Memory Networks (arXiv 1503.08895); Sukhbaatar et al. 2019, Augmenting
    Self-attention with Persistent Memory (arXiv 1907.01470), section 4.1; Geva et al. 2021, Transformer Feed-Forward
    Layers Are Key-Value Memories (arXiv 2012.14913)
Reference: torch.nn.functional.scaled_dot_product_attention with trained keys and values; timm layers/mlp.py otherwise
Equation: sqrt(E) softmax(x K^T / sqrt(D)) V, or f(x K^T) V
Cost: O(N D E) time with E keys, 2 D E parameters

    With an elementwise activation in place of softmax it is an MLP: keys are the rows of its first matrix, values the
    columns of its second.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import ChannelMixer, Context, Expansion, Rate, Seq
from blockyard.ops.linear import linear, residual


class Memory(ChannelMixer):
    """Attention to keys that are weights, shared by all tokens of all sequences.

    Keys and values are two matrices. Weight decay and Muon treat them like those of an MLP.

    Options:
        expansion: number of keys as a multiple of model.dim
        activation: softmax attends to the keys, scaled by sqrt(E) so that an average over many values does not
            vanish; any other activation applies to the unscaled scores, which makes it an MLP
        bias: use biases on the scores and on the outputs
        dropout: dropout rate on the weights of the values
    """

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 4.0,
        activation: Literal["softmax", "gelu", "gelu_tanh", "relu", "relu2", "silu"] = "softmax",
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        keys = max(1, round(expansion * ctx.dim))
        self.activation = ACTIVATIONS.get(activation)  # None is softmax
        if self.activation is None:
            self.fades = "it is a mean over all values, of which what training has not moved cancels"
        # Scores, sums over all channels, are as large in wider models; then so is what all keys together read.
        self.scale, self.gain = (ctx.dim / ctx.width_ratio) ** -0.5, (keys * ctx.width_ratio) ** 0.5
        self.proj_in = linear(ctx, ctx.dim, keys, bias=bias, content=0)  # the keys, (E, D)
        self.dropout = nn.Dropout(dropout)
        self.proj_out = residual(ctx, keys, ctx.dim, bias=bias)  # the values, (D, E)

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(self.mix(self.proj_in(x)))

    def mix(self, h: Tensor) -> Tensor:
        """Turns scores into weights: (B, N, E) -> (B, N, E)."""
        if self.activation is None:
            return self.dropout(self.gain * torch.softmax(self.scale * h, dim=-1))
        return self.dropout(self.activation(h))
