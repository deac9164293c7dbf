"""gMLP: half of the hidden channels are mixed over the tokens by a trained matrix and gate the other half.

Source: Liu et al. 2021, Pay Attention to MLPs (arXiv 2105.08050), eq. 2
Reference: timm models/mlp_mixer.py, SpatialGatingUnit
Equation: W2 (u * (W norm(v) + b)), [u, v] = gelu(W1 x), W along the tokens
Cost: O(N^2 E + N D E) time with E hidden channels, N^2 parameters for the tokens

Use it with block=single as the paper does: it includes its own channel mixing.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Expansion, Memory, Rate, Role, Seq, TokenMixer, Traits
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._checks import check_call, check_context, check_length
from blockyard.weight_init import Init


class SpatialGate(nn.Module):
    """The second half of the channels, mixed over the tokens, times the first half."""

    roles: ClassVar[dict[str, Role]] = {"weight": "fixed", "bias": "fixed"}

    def __init__(self, half: int, length: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm = nn.LayerNorm(half)
        self.weight = nn.Parameter(torch.empty(length, length))
        self.bias = nn.Parameter(torch.empty(length))

    def init_weights(self, init: Init) -> None:
        """Draw near-zero weights, bias one: the gate starts at one, and the unit as an MLP on each token."""
        init.normal("weight", std=1e-6)
        init.ones("bias")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, 2 C) -> (B, N, C)."""
        value, gate = x.chunk(2, dim=-1)
        weight = self.weight.tril() if self.causal else self.weight
        return value * (weight @ self.norm(gate) + self.bias[:, None])  # (B, N, C)


class GMLP(TokenMixer):
    """Weights belong to token indices, so every sequence must have the length of training.

    Options:
        expansion: hidden width as a multiple of model.dim, before the gate halves it
        bias: use biases in the projections of channels
        dropout: dropout rate on the hidden channels, before the gate
    """

    traits = Traits(causal=True, any_length=False)
    hidden_multiple: ClassVar[int] = 2  # the gated half and the gating half

    def __init__(self, ctx: Context, *, expansion: Expansion = 6.0, bias: bool = True, dropout: Rate = 0.0) -> None:
        super().__init__()
        check_context(self, ctx)
        self.length = ctx.tokens.max_len + ctx.num_prefix
        half = max(1, round(expansion * ctx.dim / 2))
        self.proj_in = linear(ctx, ctx.dim, 2 * half, bias=bias, content=0)
        self.dropout = nn.Dropout(dropout)
        self.gate = SpatialGate(half, self.length, ctx.causal)
        self.proj_out = residual(ctx, half, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). Raises ValueError unless N is the length of training."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq))

    def mix(self, h: Tensor, seq: Seq, cache: Any = None) -> Tensor:
        """Activation and gate between the projections: (B, N, E) -> (B, N, E / 2)."""
        check_length(self, self.length, h)
        return self.gate(self.dropout(F.gelu(h)))
