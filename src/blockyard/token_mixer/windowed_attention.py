"""Windowed attention: a token reads only from its neighbours in the sequence.

Source: Beltagy et al. 2020, Longformer (arXiv 2004.05150), section 3.1, also for the stride ("dilated"); Child et al.
    2019 (arXiv 1904.10509) for the causal form; Meta 2025, Llama 4, for chunks
Reference: transformers models/mistral (sliding_window), models/llama4 (attention_chunk_size)
Equation: softmax(Q K^T / sqrt(K)) V over |i - j| < window; causal, over i - window < j <= i; with a stride s over
    |i - j| < s window where s divides i - j; chunked, over floor(i / window) = floor(j / window)
Cost: O(N window D) time in FlexAttention, O(N^2 D) elsewhere; a cache of `window` tokens at any length, with
    a stride s of s window

    causal, window 3      bidirectional, window 2

    x . . . .             x x . . .
    x x . . .             x x x . .
    x x x . .             . x x x .
    . x x x .             . . x x x
    . . x x x             . . . x x

    causal, window 2, stride 2      causal, chunked, window 3

    x . . . .                       x . . . .
    . x . . .                       x x . . .
    x . x . .                       x x x . .
    . x . x .                       . . . x .
    . . x . x                       . . . x x
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blockyard.contracts import ChoiceOptions, Context, Length, Traits
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.cache import KVCache, WindowCache
from blockyard.ops.mask import Visibility
from blockyard.token_mixer.attention import Attention

WINDOW = 8


class WindowedAttention(Attention):
    """For tokens on a line: distance is measured in the order of the sequence.

    Class and register tokens see all tokens and are seen by all. The window does not apply to a memory.

    Options:
        window: tokens that a token sees, itself included, looking back; bidirectional, window - 1 to each side
        stride: distance between the tokens that a token sees
        chunked: a token sees its own chunk of `window` tokens in place of a window around it. A document begins a chunk
        kv_every: one in so many layers computes keys and values, as in attention; 0 reads the keys and values of a
            member of a cycle with the same window
    """

    traits = replace(Attention.traits, equivariant=False, axes=frozenset({1}))

    @with_options_of(Attention, without=("output_dim", "project", "fused", "map", "mimetic"))
    def __init__(
        self, ctx: Context, *, window: Length = WINDOW, stride: Length = 1, chunked: bool = False, **options: Any
    ) -> None:
        if chunked and stride > 1:
            raise ValueError(f"token_mixer.stride={stride}: a chunk holds neighbours; use stride=1 or chunked=false")
        self.stride = stride
        self.chunked = chunked
        self.window: int = window * stride  # read by the constructor
        super().__init__(ctx, **options)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits of attention, with keys and values that layers of the same window share."""
        window = options.get("window", WINDOW) * options.get("stride", 1)
        return super().traits_for({**options, "window": window})

    @property
    def visibility(self) -> Visibility:
        """The keys that a query may see in the sequence itself."""
        if self.chunked:
            return Visibility(self.causal, chunk=self.window)
        return Visibility(self.causal, self.window, stride=self.stride)

    def _key_cache(self, batch_size: int) -> KVCache:
        """Return a cache that drops keys once no later token sees them."""
        return WindowCache(batch_size, self.kv_heads, self.head_dim, self.value_dim, window=self.window)
