"""Gated short convolution: a few tokens, multiplied by a gate before they are convolved and by another one after it.

Source: Liquid AI 2025, LFM2 Technical Report (arXiv 2511.23404), section 2; the gates as in Poli et al. 2023, Hyena
    Hierarchy (arXiv 2302.10866), section 3.1
Reference: transformers Lfm2ShortConv
Equation: y = W_o (c * conv(b * x)) for b, c, x = W u, with a weight for each channel and each of k tokens
Cost: O(N D (D + k)) time; decoding keeps the last k - 1 inputs of the convolution
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because, Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, check_one_document
from blockyard.token_mixer._recurrent import backwards, reverse
from blockyard.token_mixer._short_conv import ShortConv, last_inputs

Taps = Annotated[int, Ge(1), Le(64), Because("it is short: token_mixer=long_conv reaches as far as the sequence")]


class GatedConv(TokenMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence do not read each other.

    Options:
        kernel: tokens that the convolution reads, the token itself included
        bias: use biases in the projections and in the convolution
    """

    traits = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, *, kernel: Taps = 3, bias: bool = False) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.proj_in = linear(ctx, ctx.dim, 3 * ctx.dim, bias=bias, content=0)  # b, c, x
        self.conv = ShortConv(ctx.dim, kernel, bias=bias)
        self.proj_out = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))

    def mix(self, h: Tensor, seq: Seq, cache: StateCache | None = None) -> Tensor:
        """The convolution between the projections: (B, N, 3 D) -> (B, N, D)."""
        check_one_document(self, seq, cache)
        before, after, x = h.chunk(3, dim=-1)
        x = before * x
        past = None if cache is None or cache.parts is None else cache.parts[0]
        if cache is not None:
            cache.store(last_inputs(past, x, self.conv.kernel - 1))
        y = self.conv(x, seq, past)
        if not self.causal:
            y = y + reverse(self.conv(reverse(x, seq.valid), backwards(seq)), seq.valid)
        return after * y  # (B, N, D)

    def init_cache(self, batch_size: int) -> StateCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return StateCache()
