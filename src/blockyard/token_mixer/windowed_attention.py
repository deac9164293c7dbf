"""Windowed attention: a token reads only from its neighbours in the sequence.

Source: Beltagy et al. 2020, Longformer (arXiv 2004.05150), section 3.1; Child et al. 2019 (arXiv 1904.10509) for the
    causal form; section 3.1 of the former for the stride ("dilated"); Meta 2025, Llama 4, for chunks
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

from blockyard.contracts import ChoiceOptions, Context, DepthOrZero, Heads, Length, Positive, Rate, Traits, Width
from blockyard.ops.cache import KVCache, WindowCache
from blockyard.ops.mask import Visibility
from blockyard.token_mixer._query_key_norms import QueryKeyNorm
from blockyard.token_mixer._scores import ScoreScale, Sink
from blockyard.token_mixer._short_conv import Kernel
from blockyard.token_mixer._values import GatedValueResidual, ValueEmbedding
from blockyard.token_mixer.attention import Attention, OutputGate

WINDOW = 8


class WindowedAttention(Attention):
    """For tokens on a line: distance is measured in the order of the sequence.

    Class and register tokens see all tokens and are seen by all. The window does not apply to a memory.

    Options:
        window: tokens that a token sees, itself included, looking back; bidirectional, window - 1 to each side
        stride: distance between the tokens that a token sees
        chunked: a token sees those of its own chunk of `window` tokens in place of those near it. A document begins a
            chunk
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        key_dim: width of queries and keys in each head; null means model.dim / model.heads
        value_dim: width of values in each head; null means model.dim / model.heads
        qk_norm: norm of queries and keys before rotation, with a trained gain: RMS-normalise each head (true is
            the same), all heads together (full), or by a layer norm of each head; cosine gives vectors of length one,
            and scores a trained factor for each head; sphere the same with one for each channel, after rotation, and
            scores of sqrt(key_dim); false is none
        bias: use biases in the projections
        dropout: dropout rate on the attention weights
        gate: factors in (0, 1), from the token itself, on what it has read: none, one for each head, or one for each
            channel
        conv: tokens that a short causal convolution of queries, keys and values reads; 0 leaves it out
        score_scale: factor on the scores: null is 1 / sqrt(key_dim); a number in its place; learned, a trained factor
            for each head beside it; log_n, that times the logarithm of the number of keys that a token sees
        softcap: bound on the scores, by a tanh, before position biases; null is none
        sink: a logit of each head that takes weight and gives no value: none; zero, which lets a token read almost
            nothing; or a trained one
        exclusive: take out of what a token reads, in each head, the part along the token's own value
        tied_kv: values are the keys before their norm and rotation, without a projection of their own
        value_residual: how values are joined with those of the first layer, as in attention
        value_embedding: which layers add trained vectors of the token ids to their values: none, all, or every second
            one, the last among them (alternate)
        kv_every: every so many layers one has keys and values of its own, as in attention; 0 reads those of a member
            of a cycle with the same window
    """

    traits = replace(Attention.traits, equivariant=False, axes=frozenset({1}))

    def __init__(
        self,
        ctx: Context,
        *,
        window: Length = WINDOW,
        stride: Length = 1,
        chunked: bool = False,
        num_kv_heads: Heads | None = None,
        key_dim: Width | None = None,
        value_dim: Width | None = None,
        qk_norm: QueryKeyNorm = False,
        bias: bool = False,
        dropout: Rate = 0.0,
        gate: OutputGate = "none",
        conv: Kernel = 0,
        score_scale: ScoreScale = None,
        softcap: Positive | None = None,
        sink: Sink = "none",
        exclusive: bool = False,
        tied_kv: bool = False,
        value_residual: GatedValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
        kv_every: DepthOrZero = 1,
    ) -> None:
        if chunked and stride > 1:
            raise ValueError(f"token_mixer.stride={stride}: a chunk holds neighbours; use stride=1 or chunked=false")
        self.stride, self.chunked = stride, chunked
        self.window: int = window * stride  # read by the constructor
        super().__init__(
            ctx,
            num_kv_heads=num_kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            qk_norm=qk_norm,
            bias=bias,
            dropout=dropout,
            gate=gate,
            conv=conv,
            score_scale=score_scale,
            softcap=softcap,
            sink=sink,
            exclusive=exclusive,
            tied_kv=tied_kv,
            value_residual=value_residual,
            value_embedding=value_embedding,
            kv_every=kv_every,
        )

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """As `Attention.traits_for`: keys and values of a window are not those of another."""
        window = options.get("window", WINDOW) * options.get("stride", 1)
        return super().traits_for({**options, "window": window})

    @property
    def visibility(self) -> Visibility:
        """What a query of the sequence itself may see."""
        if self.chunked:
            return Visibility(self.causal, chunk=self.window)
        return Visibility(self.causal, self.window, stride=self.stride)

    def _key_cache(self, batch_size: int) -> KVCache:
        """A cache that drops what no later token sees."""
        return WindowCache(batch_size, self.kv_heads, self.head_dim, self.value_dim, window=self.window)
