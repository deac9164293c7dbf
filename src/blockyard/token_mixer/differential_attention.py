"""Differential attention: the difference of two softmax attentions, which cancels their common noise.

Source: Ye et al. 2024, Differential Transformer (arXiv 2410.05258), eq. 1 to 3
Reference: timm layers/diff_attention.py, DiffAttention; transformers models/diffllama
Equation: in each head, with [Q1; Q2] = x W_Q and [K1; K2] = x W_K of K / 2 channels and V = x W_V of K channels,
    y = (1 - l_0) RMSNorm((softmax(Q1 K1^T / sqrt(K / 2)) - l softmax(Q2 K2^T / sqrt(K / 2))) V)
    l = exp(a_1 b_1) - exp(a_2 b_2) + l_0 with trained vectors a, b, and l_0 = 0.8 - 0.6 exp(-0.3 layer), from layer 0
Cost: O(N^2 D) time, half as much again as attention: two sets of scores of half the width, and values twice; its cache

    x --> q1, q2 --> softmax(q1 k1) v --+
      --> k1, k2                        -(l)--> norm --> (1 - l_0) --> W
      --> v      --> softmax(q2 k2) v --+
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Heads, Memory, Rate, Role, Seq, TokenMixer, Traits
from blockyard.ops import kernel, maps, reference
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import Visibility
from blockyard.ops.rotate import rotate
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, key_heads
from blockyard.weight_init import Init


class DifferentialAttention(TokenMixer):
    """Queries and keys of a head are two pairs of half its width. A position scheme rotates each pair by itself.

    Options:
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        bias: use biases in the projections
        dropout: dropout rate on the weights of both attentions
    """

    traits = Traits(
        causal=True, padding=True, packing=True, equivariant=True, ports=frozenset({"queries_and_keys", "scores"})
    )
    roles: ClassVar[dict[str, Role]] = {"lambdas": "vector", "norm": "vector"}
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"lambdas"})
    key_option: ClassVar[str] = "model.dim or model.heads"

    def __init__(
        self, ctx: Context, *, num_kv_heads: Heads | None = None, bias: bool = False, dropout: Rate = 0.0
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        if ctx.head_dim % 2:
            raise ValueError(
                f"token_mixer=differential_attention halves the channels of a head, and model.dim / model.heads is "
                f"{ctx.head_dim}; use an even number"
            )
        self.causal = ctx.causal
        self.heads = ctx.heads
        self.dropout = dropout
        self.kv_heads = key_heads(ctx, num_kv_heads)
        self.value_dim = ctx.head_dim
        self.head_dim = self.key_width = ctx.head_dim // 2
        self.widths = [width * ctx.head_dim for width in (ctx.heads, self.kv_heads, self.kv_heads)]  # q, k, v
        self.scale = (ctx.score_scale(ctx.head_dim) or ctx.head_dim**-0.5) * 2**0.5  # 1 / sqrt(K / 2)
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths), bias=bias, content=sum(self.widths[:2]))
        self.lambdas = nn.Parameter(torch.empty(4, self.head_dim))  # a_1, b_1, a_2, b_2
        self.first_lambda = 0.8 - 0.6 * math.exp(-0.3 * ctx.layer)
        self.of_sums = 1 / ctx.head_ratio  # products a b of wider heads stay as large
        self.norm = nn.RMSNorm(self.value_dim, eps=1e-5)
        self.proj_out = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Draw vectors of standard deviation 0.1, as in the paper."""
        init.normal("lambdas", std=0.1)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """Attention between the projections: h (B, N, queries + keys + values) -> (B, N, D)."""
        q, k, v = (part.unflatten(-1, (-1, self.value_dim)).transpose(1, 2) for part in h.split(self.widths, dim=-1))
        # Halves are rotated one by one, so that each is a whole vector to the position scheme.
        pairs = [rotate(*pair, seq, seq) for pair in zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)]
        q, k = (torch.cat(halves, dim=-1) for halves in zip(*pairs, strict=True))  # (B, H, N, K), (B, H', N, K)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)  # 2 x (B, H', M, K)
        factor = self.factor().to(h.dtype)
        if maps.listening() or kernel.recording():  # show one attention, the difference, instead of two
            rule = partial(difference, factor=factor.detach().float())
            maps.note(q, k, v, seq, k_seq, self.visibility, self.scale, rule)
            with maps.paused(), kernel.as_one():
                y = self._difference(q, k, v, seq, k_seq, factor)
        else:
            y = self._difference(q, k, v, seq, k_seq, factor)
        y = nn.functional.rms_norm(y, self.norm.normalized_shape, self.norm.weight.to(y.dtype), self.norm.eps)
        # The constant factor keeps gradients as large as in softmax attention.
        return (y * (1 - self.first_lambda)).transpose(1, 2).flatten(2)  # (B, N, D)

    def factor(self) -> Tensor:
        """The factor l on the second attention, a scalar."""
        # exp(a_1 b_1) and exp(a_2 b_2)
        first, second = (self.lambdas[[0, 2]] * self.lambdas[[1, 3]]).sum(-1).mul(self.of_sums).exp()
        return first - second + self.first_lambda

    def _difference(self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq, factor: Tensor) -> Tensor:
        """Return the output of the first attention, minus `factor` times the second: (B, H, N, K)."""
        rate = self.dropout if self.training else 0.0
        first, second = (
            attend(some_q, some_k, v, seq, k_seq, self.visibility, dropout=rate, scale=self.scale)
            for some_q, some_k in zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)
        )
        return first - factor * second

    @property
    def visibility(self) -> Visibility:
        """The keys that a query may see."""
        return Visibility(self.causal)

    def init_cache(self, batch_size: int) -> KVCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return KVCache(batch_size, self.kv_heads, self.value_dim)

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Build the masks of a sequence once for all layers, if it needs any."""
        prepare(seq, self.visibility, self.heads, self.value_dim, x, self.dropout if self.training else 0.0)


def difference(
    q: Tensor, k: Tensor, seq: Seq, k_seq: Seq, visibility: Visibility, scale: float | None, factor: Tensor
) -> Tensor:
    """Return the weights (B, H, N, M) of joined pairs q (B, H, N, K), k (B, H', M, K). They may be negative."""
    first, second = (
        reference.weights(some_q, some_k, seq, k_seq, visibility, scale)
        for some_q, some_k in zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)
    )
    return first - factor * second
