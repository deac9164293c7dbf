"""Multi-head attention; fewer key heads give grouped and multi-query attention.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), eq. 1; Ainslie et al. 2023, GQA
    (arXiv 2305.13245); Henry et al. 2020, Query-Key Normalization (arXiv 2010.04245)
Reference: torch.nn.MultiheadAttention; timm layers/attention.py
Equation: softmax(Q K^T / sqrt(K)) V
Cost: O(N^2 D) time, O(N) memory with a fused kernel
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Count, Memory, Rate, Seq, TokenMixer, Traits
from blockyard.init import Init
from blockyard.ops.attend import attend
from blockyard.ops.cache import KVCache
from blockyard.ops.linear import linear, residual
from blockyard.ops.rotate import rotate
from blockyard.token_mixer._declared import check_call, check_context


class HeadNorm(nn.RMSNorm):
    """RMS normalisation over the channels of a head, in the type of its input."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, eps=1e-6)

    def init_weights(self, init: Init) -> None:
        """Gain one."""
        init.ones("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, K). A gain of another type than x would cost the fused kernel."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(TokenMixer):
    """Every token reads from every token it may see.

    Options:
        num_kv_heads: heads of keys and values; null means as many as queries, 1 is multi-query
        qk_norm: RMS-normalise queries and keys in each head, with a learned gain, before rotation
        bias: biases in the projections
        dropout: rate on the attention weights while training
    """

    traits: ClassVar[Traits] = Traits(
        causal=True,
        padding=True,
        packing=True,
        cross=True,
        equivariant=True,
        ports=frozenset({"queries_and_keys", "scores"}),
    )

    def __init__(
        self,
        ctx: Context,
        *,
        num_kv_heads: Count | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        kv_heads = ctx.heads if num_kv_heads is None else num_kv_heads
        if kv_heads < 1 or ctx.heads % kv_heads:
            fits = ", ".join(str(h) for h in range(1, ctx.heads + 1) if ctx.heads % h == 0)
            raise ValueError(
                f"token_mixer.num_kv_heads={num_kv_heads} does not divide model.heads={ctx.heads}; "
                f"numbers that do: {fits}"
            )
        self.causal, self.heads, self.kv_heads = ctx.causal, ctx.heads, kv_heads
        self.head_dim, self.dropout = ctx.head_dim, dropout
        self.q_width, self.kv_width = ctx.heads * ctx.head_dim, kv_heads * ctx.head_dim
        self.proj_in = linear(ctx, ctx.dim, self.q_width + 2 * self.kv_width, bias=bias)
        self.q_norm = HeadNorm(ctx.head_dim) if qk_norm else nn.Identity()
        self.k_norm = HeadNorm(ctx.head_dim) if qk_norm else nn.Identity()
        self.proj_out = residual(ctx, self.q_width, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D); with `memory`, keys and values come from there and nothing is causal."""
        check_call(self, self.traits, seq, cache, memory)
        if memory is None:
            return self.proj_out(self.mix(self.proj_in(x), seq, cache))  # (B, N, D)
        if cache is not None:
            raise ValueError("attention over a memory keeps no cache; give one of cache and memory")
        return self.proj_out(self._cross(x, seq, memory))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """What lies between the projections: h (B, N, (H + 2 H') K) -> (B, N, H K)."""
        q, k, v = h.split([self.q_width, self.kv_width, self.kv_width], dim=-1)
        q, k = self.q_norm(self._heads(q)), self.k_norm(self._heads(k))  # (B, H, N, K), (B, H', N, K)
        v = self._heads(v)  # (B, H', N, K)
        q, k = rotate(q, k, seq, seq)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)  # 2 x (B, H', M, K)
        return self._attend(q, k, v, seq, k_seq, self.causal)

    def init_cache(self, batch_size: int) -> KVCache:
        """An empty cache. Raises ValueError where outputs depend on the future."""
        if not self.causal:
            raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")
        return KVCache(batch_size, self.kv_heads, self.head_dim)

    def _cross(self, x: Tensor, seq: Seq, memory: Memory) -> Tensor:
        """Queries from x, keys and values from the memory: (B, N, H K)."""
        weight, bias, cut = self.proj_in.weight, self.proj_in.bias, self.q_width
        q = F.linear(x, weight[:cut], None if bias is None else bias[:cut])  # (B, N, H K)
        kv = F.linear(memory.x, weight[cut:], None if bias is None else bias[cut:])  # (B, M, 2 H' K)
        k, v = kv.chunk(2, dim=-1)
        q, k = self.q_norm(self._heads(q)), self.k_norm(self._heads(k))  # (B, H, N, K), (B, H', M, K)
        q, k = rotate(q, k, seq, memory.seq)
        return self._attend(q, k, self._heads(v), seq, memory.seq, causal=False)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq, causal: bool) -> Tensor:
        rate = self.dropout if self.training else 0.0
        y = attend(q, k, v, seq, k_seq, causal, dropout=rate)  # (B, H, N, K)
        return y.transpose(1, 2).flatten(2)  # (B, N, H K)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H, N, K)
