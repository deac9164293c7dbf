"""Windowed attention: a token reads from its neighbours in the row alone.

Source: Beltagy et al. 2020, Longformer (arXiv 2004.05150), section 3.1; Child et al. 2019 (arXiv 1904.10509) for the
    causal form
Reference: transformers models/mistral (sliding_window)
Equation: softmax(Q K^T / sqrt(K)) V over |i - j| < window; looking back alone, over i - window < j <= i
Cost: O(N window D) time in FlexAttention, O(N^2 D) elsewhere; a cache of `window` tokens, however long the row

    causal, window 3      both ways, window 2

    x . . . .             x x . . .
    x x . . .             x x x . .
    x x x . .             . x x x .
    . x x x .             . . x x x
    . . x x x             . . . x x
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from blockyard.contracts import Context, Count, Rate, Traits
from blockyard.ops.cache import KVCache, WindowCache
from blockyard.token_mixer.attention import Attention


class WindowedAttention(Attention):
    """For rows: near means near in the order of tokens, which on a grid or in a set says nothing of it.

    Class and register tokens see everything and are seen by all; a memory has no window.

    Options:
        window: how far a token sees, itself counted: that many tokens back, or window - 1 to each side
        num_kv_heads: heads of keys and values; null means as many as queries, 1 is multi-query
        qk_norm: RMS-normalise queries and keys in each head, with a learned gain, before rotation
        bias: biases in the projections
        dropout: rate on the attention weights while training
    """

    traits: ClassVar[Traits] = replace(Attention.traits, equivariant=False, axes=frozenset({1}))

    def __init__(
        self,
        ctx: Context,
        *,
        window: Count = 8,
        num_kv_heads: Count | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, num_kv_heads=num_kv_heads, qk_norm=qk_norm, bias=bias, dropout=dropout)
        self.window = window

    def init_cache(self, batch_size: int) -> KVCache:
        """A cache that forgets what no later token sees. Raises ValueError where outputs depend on the future."""
        super().init_cache(batch_size)
        return WindowCache(batch_size, self.kv_heads, self.head_dim, self.value_dim, window=self.window)
