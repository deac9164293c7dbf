"""Forgetting attention (FoX): softmax attention with scores that fall with every token between query and key.

Source: Lin et al. 2025, Forgetting Transformer (arXiv 2503.02130), eq. 4 to 7
Reference: x-transformers Attention(data_dependent_alibi=True)
Equation: softmax(Q K^T / sqrt(K) + D) V with D_ij = sum_(j < l <= i) log f_l for j <= i, f_l = sigmoid(x_l W + b) of
    each head; so the weight of key j is multiplied by f_(j+1) ... f_i. A bidirectional model has D_ij = D_ji
Cost: O(N^2 D) time; D is made of two vectors, the sums of log f up to queries and keys. The cache has that sum of each
    token and head beside keys and values

    The gates between two tokens tell their distance, so that it needs no position scheme.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Heads, Memory, NonNegative, Rate, Role, Seq, TokenMixer, Traits
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.documents import document_starts
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import Visibility
from blockyard.ops.rotate import rotate
from blockyard.ops.shaping import FORGETS, Forget, Shaping
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, key_heads
from blockyard.token_mixer._query_key_norms import SAME_NORMS, NormOfHeads, key_norm, query_norm
from blockyard.token_mixer._scores import Scores
from blockyard.weight_init import Init


class ForgettingCache(KVCache):
    """Keys and values, with the sum of log f up to each token (B, H, M) in float32 at least."""

    def __init__(self, batch_size: int, kv_heads: int, head_dim: int) -> None:
        super().__init__(batch_size, kv_heads, head_dim)
        self.sums: Tensor | None = None

    @property
    def bytes(self) -> int:
        """The size of keys, values and sums."""
        if self.sums is None:
            return super().bytes
        return super().bytes + self.sums.numel() * self.sums.element_size()

    def continued(self, sums: Tensor) -> Tensor:
        """Sums (B, H, N) over new tokens alone -> sums of all tokens (B, H, M), which the cache keeps."""
        if self.sums is not None:
            sums = torch.cat([self.sums, self.sums[..., -1:] + sums], dim=-1)
        self.sums = sums.detach()
        return sums

    def crop(self, count: int) -> None:
        """Forget the last `count` tokens, as `KVCache.crop` does."""
        super().crop(count)
        if self.sums is not None and count:
            self.sums = self.sums[..., :-count]

    def reorder(self, order: Tensor) -> None:
        """Reorder the sequences, as `KVCache.reorder` does."""
        super().reorder(order)
        if self.sums is not None:
            self.sums = self.sums.index_select(0, order)


NOTHING = Forget(torch.zeros(()), torch.zeros(()))  # stands for the sums in `prepare`, which have no values yet


class ForgettingAttention(TokenMixer):
    """For tokens in an order: the tokens between query and key decide how much is forgotten.

    Options:
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        qk_norm: norm of queries and keys, as in attention, without sphere
        bias: use biases in the projections
        forget_bias: initial bias of the forget gates; a larger one forgets less at first
        dropout: dropout rate on the attention weights
    """

    traits = Traits(
        causal=True,
        padding=True,
        packing=True,
        axes=frozenset({1, 2}),
        ports=frozenset({"queries_and_keys", "scores"}),
    )
    roles: ClassVar[dict[str, Role]] = {"forget_bias": "fixed"}
    same_values: ClassVar[dict[str, dict[str, bool]]] = {"qk_norm": SAME_NORMS}
    shapes_scores: ClassVar[str] = FORGETS

    def __init__(
        self,
        ctx: Context,
        *,
        num_kv_heads: Heads | None = None,
        qk_norm: NormOfHeads = False,
        bias: bool = False,
        forget_bias: NonNegative = 0.0,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.heads = ctx.heads
        self.kv_heads = key_heads(ctx, num_kv_heads)
        self.head_dim = ctx.head_dim
        self.dropout = dropout
        self.first_bias = forget_bias
        self.key_width: int = ctx.head_dim
        keys = self.kv_heads * self.head_dim
        self.widths = [ctx.heads * self.head_dim, keys, keys, ctx.heads]  # q, k, v, forget gates
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths), bias=bias, content=sum(self.widths[:2]))
        self.forget_bias = nn.Parameter(torch.empty(ctx.heads))
        self.q_norm = query_norm(qk_norm, ctx.heads, self.head_dim)
        self.k_norm = key_norm(qk_norm, self.kv_heads, self.head_dim)
        self.scale = Scores(ctx, ctx.heads, self.head_dim, cosine=qk_norm == "cosine").scale
        self.proj_out = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def init_weights(self, init: Init) -> None:
        """Set the bias of the forget gates."""
        init.constant("forget_bias", self.first_bias)

    def forward(
        self, x: Tensor, seq: Seq, cache: ForgettingCache | None = None, memory: Memory | None = None
    ) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: ForgettingCache | None = None) -> Tensor:
        """Attention between the projections: h (B, N, queries + keys + values + H) -> (B, N, D)."""
        *qkv, gates = h.split(self.widths, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in qkv)
        q, k = rotate(self.q_norm(q), self.k_norm(k), seq, seq)  # (B, H, N, K), (B, H', N, K)
        sums = key_sums = self._sums(gates, seq)  # (B, H, N)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)  # 2 x (B, H', M, K)
            key_sums = cache.continued(sums)
            sums = key_sums[..., -len(seq) :]
        shaping = Shaping(forget=Forget(sums, key_sums))
        rate = self.dropout if self.training else 0.0
        y = attend(q, k, v, seq, k_seq, Visibility(self.causal), dropout=rate, scale=self.scale, shaping=shaping)
        return y.transpose(1, 2).flatten(2)  # (B, N, D)

    def _sums(self, gates: Tensor, seq: Seq) -> Tensor:
        """Return sums of log f up to each token, over the prefix and its document: (B, H, N), in float32 at least."""
        # In half precision the sums of a long sequence would lose the differences between neighbours.
        exact = torch.promote_types(gates.dtype, torch.float32)
        log = F.logsigmoid(gates.to(exact) + self.forget_bias.to(exact)).transpose(1, 2)  # (B, H, N)
        sums = log.cumsum(-1)
        if seq.segment is None:
            return sums
        start = document_starts(seq.segment, seq.num_prefix)[:, None].expand_as(sums)
        inside = sums - (sums - log).gather(-1, start)  # (B, H, N), from the start of each document on
        p = seq.num_prefix
        if not p:
            return inside
        return torch.cat([inside[..., :p], inside[..., p:] + inside[..., p - 1 : p]], dim=-1)  # (B, H, N)

    def init_cache(self, batch_size: int) -> ForgettingCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return ForgettingCache(batch_size, self.kv_heads, self.head_dim)

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Build the masks of a sequence once for all layers, if it needs any."""
        rate = self.dropout if self.training else 0.0
        prepare(seq, Visibility(self.causal), self.heads, self.head_dim, x, rate, shaping=Shaping(forget=NOTHING))
