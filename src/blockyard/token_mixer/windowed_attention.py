"""Windowed attention: a token reads only from its neighbours in the sequence.

Source: Beltagy et al. 2020, Longformer (arXiv 2004.05150), section 3.1; Child et al. 2019 (arXiv 1904.10509) for the
    causal form
Reference: transformers models/mistral (sliding_window)
Equation: softmax(Q K^T / sqrt(K)) V over |i - j| < window; causal, over i - window < j <= i
Cost: O(N window D) time in FlexAttention, O(N^2 D) elsewhere; a cache of `window` tokens at any length

    causal, window 3      bidirectional, window 2

    x . . . .             x x . . .
    x x . . .             x x x . .
    x x x . .             . x x x .
    . x x x .             . . x x x
    . . x x x             . . . x x
"""

from __future__ import annotations

from dataclasses import replace

from blockyard.contracts import Context, Heads, Length, Rate
from blockyard.ops.cache import KVCache, WindowCache
from blockyard.token_mixer.attention import Attention


class WindowedAttention(Attention):
    """For tokens on a line: distance is measured in the order of the sequence.

    Class and register tokens see all tokens and are seen by all. The window does not apply to a memory.

    Options:
        window: tokens that a token sees, itself included, looking back; bidirectional, window - 1 to each side
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        qk_norm: RMS-normalise queries and keys in each head, with a learned gain, before rotation
        bias: use biases in the projections
        dropout: dropout rate on the attention weights
    """

    traits = replace(Attention.traits, equivariant=False, axes=frozenset({1}))

    def __init__(
        self,
        ctx: Context,
        *,
        window: Length = 8,
        num_kv_heads: Heads | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, num_kv_heads=num_kv_heads, qk_norm=qk_norm, bias=bias, dropout=dropout)
        self.window: int = window

    def init_cache(self, batch_size: int) -> KVCache:
        """A cache that drops what no later token sees. Raises ValueError where outputs depend on the future."""
        super().init_cache(batch_size)
        return WindowCache(batch_size, self.kv_heads, self.head_dim, self.value_dim, window=self.window)
