"""Strict attention: a token does not see itself, in the first layer or in all.

Source: Germain et al. 2015, MADE (arXiv 1502.03509), and van den Oord et al. 2016, Pixel Recurrent Neural Networks
    (arXiv 1601.06759), section 3.4: mask "A" in the first layer, "B" after it
Reference: the diagonal masked out of torch.nn.MultiheadAttention
Equation: softmax(Q K^T / sqrt(K)) V over j < i; looking both ways, over j != i
Cost: that of attention; looking back needs no mask, the same kernel runs over all queries but the first

    A net predicts a token from the others when its first layer is strict and nothing goes around that
    layer: use block=no_residual, or read the residual stream as one that carries the token along.
"""

from __future__ import annotations

from typing import Literal

from blockyard.contracts import Context, Count, Rate
from blockyard.token_mixer.attention import Attention


class StrictAttention(Attention):
    """What sees nothing, such as the first token of a causal row, gets zero.

    Options:
        layers: first masks the token itself in the first block alone, all in every block
        num_kv_heads: heads of keys and values; null means as many as queries, 1 is multi-query
        qk_norm: RMS-normalise queries and keys in each head, with a learned gain, before rotation
        bias: biases in the projections
        dropout: rate on the attention weights while training
    """

    def __init__(
        self,
        ctx: Context,
        *,
        layers: Literal["first", "all"] = "first",
        num_kv_heads: Count | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, num_kv_heads=num_kv_heads, qk_norm=qk_norm, bias=bias, dropout=dropout)
        self.strict = layers == "all" or ctx.layer == 0
