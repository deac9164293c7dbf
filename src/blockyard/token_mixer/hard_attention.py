"""Hard attention: each query takes the value of its most similar key, like a dictionary lookup.

Source: Xu et al. 2015, Show, Attend and Tell (arXiv 1502.03044), section 4.1, sampled there; the gradient from
    Bengio et al. 2013 (arXiv 1308.3432)
Reference: torch.nn.functional.gumbel_softmax(hard=True), without its noise
Equation: V[argmax_j s_ij] with s = Q K^T / sqrt(K), and the gradient of softmax(s / temperature) V
Cost: O(N^2 D) time, O(N^2) memory in each head: no fused kernel gives the gradient

    The limit of softmax attention as its temperature goes to zero.
"""

from __future__ import annotations

from functools import partial

from blockyard.contracts import Context, Heads, Positive, Rate
from blockyard.ops.custom_weights import hard
from blockyard.token_mixer._query_key_norms import QueryKeyNorm
from blockyard.token_mixer._rule_attention import RuleAttention
from blockyard.token_mixer._values import GatedValueResidual, ValueEmbedding


class HardAttention(RuleAttention):
    """Keys that tie for the highest score share the weight.

    Options:
        temperature: temperature of the softmax whose gradient is used; the output does not depend on it
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        qk_norm: norm of queries and keys before rotation, with a trained gain: RMS-normalise each head (true is
            the same), all heads together (full), or by a layer norm of each head; cosine gives vectors of length one,
            and scores a trained factor for each head; sphere the same with one for each channel, after rotation, and
            scores of sqrt(key_dim); false is none
        bias: use biases in the projections
        dropout: dropout rate on the attention weights; a query whose key is dropped reads zero
        value_residual: how values are joined with those of the first layer, as in attention
        value_embedding: which layers add trained vectors of the token ids to their values: none, all, or every second
            one, the last among them (alternate)
    """

    def __init__(
        self,
        ctx: Context,
        *,
        temperature: Positive = 1.0,
        num_kv_heads: Heads | None = None,
        qk_norm: QueryKeyNorm = False,
        bias: bool = False,
        dropout: Rate = 0.0,
        value_residual: GatedValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
    ) -> None:
        super().__init__(
            ctx,
            num_kv_heads=num_kv_heads,
            qk_norm=qk_norm,
            bias=bias,
            dropout=dropout,
            value_residual=value_residual,
            value_embedding=value_embedding,
        )
        self.rule = partial(hard, temperature=temperature)
