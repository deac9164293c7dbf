"""Key-value memory: each token attends to trained keys and reads trained values.

Source: Sukhbaatar et al. 2015, End-To-End Memory Networks (arXiv 1503.08895); Sukhbaatar et al. 2019, Augmenting
    Self-attention with Persistent Memory (arXiv 1907.01470), section 4.1; Geva et al. 2021, Transformer Feed-Forward
    Layers Are Key-Value Memories (arXiv 2012.14913)
Reference: torch.nn.functional.scaled_dot_product_attention with trained keys and values; timm layers/mlp.py otherwise
Equation: sqrt(E) softmax(x K^T / sqrt(D)) V, or f(x K^T) V; query=true has x W_Q in place of x, and gain=false no
    sqrt(E): both together are softmax(x W_Q K^T / sqrt(D)) V
Cost: O(N D E) time with E keys, 2 D E parameters; D^2 more of each for a map of queries

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
            vanish; with any other activation, on unscaled scores, the memory is an MLP
        bias: use biases on the scores and on the outputs
        dropout: dropout rate on the weights of the values
        query: compare the keys with a linear map of the token, and not with the token itself
        gain: multiply the weights of softmax by sqrt(E)
    """

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 4.0,
        activation: Literal["softmax", "gelu", "gelu_tanh", "relu", "relu2", "silu"] = "softmax",
        bias: bool = False,
        dropout: Rate = 0.0,
        query: bool = False,
        gain: bool = True,
    ) -> None:
        super().__init__()
        if not gain and activation != "softmax":
            raise ValueError(
                f"channel_mixer.gain=false: activation={activation} has no factor to leave out; use "
                "activation=softmax, or leave gain out"
            )
        keys = max(1, round(expansion * ctx.dim))
        self.activation = ACTIVATIONS.get(activation)  # None is softmax
        if self.activation is None:
            self.fades = "it is a mean over all values, of which what training has not moved cancels"
        # Scores, sums over all channels, stay as large in wider models, and so does the output of all keys together.
        self.scale = (ctx.dim / ctx.width_ratio) ** -0.5
        self.gain = (keys * ctx.width_ratio) ** 0.5 if gain else ctx.width_ratio
        # The keys (E, D); with query=true the map of the token, and the keys behind it.
        self.proj_in = linear(ctx, ctx.dim, ctx.dim if query else keys, bias=bias, content=None if query else 0)
        self.keys = linear(ctx, ctx.dim, keys, bias=bias, content=0) if query else None
        self.dropout = nn.Dropout(dropout)
        self.proj_out = residual(ctx, keys, ctx.dim, bias=bias)  # the values, (D, E)

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.proj_out(self.mix(self.proj_in(x)))

    def mix(self, h: Tensor) -> Tensor:
        """Turn scores, or with query=true queries, into weights: (B, N, E | D) -> (B, N, E)."""
        if self.keys is not None:
            h = self.keys(h)  # (B, N, E)
        if self.activation is None:  # the scale is inside the softmax, and the gain on the weights
            return self.dropout(self.gain * torch.softmax(self.scale * h, dim=-1))
        return self.dropout(self.activation(h))
