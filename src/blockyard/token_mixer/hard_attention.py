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
from typing import Any

from blockyard.contracts import Context, Positive
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.custom_weights import hard
from blockyard.token_mixer._rule_attention import RuleAttention
from blockyard.token_mixer.attention import Attention


class HardAttention(RuleAttention):
    """Keys that tie for the highest score share the weight.

    Options:
        temperature: temperature of the softmax that gives the gradient; the output does not depend on it
        dropout: dropout rate on the attention weights; a query reads zero if its key is dropped
    """

    @with_options_of(
        Attention, only=("num_kv_heads", "qk_norm", "bias", "dropout", "value_residual", "value_embedding")
    )
    def __init__(self, ctx: Context, *, temperature: Positive = 1.0, **options: Any) -> None:
        super().__init__(ctx, **options)
        self.rule = partial(hard, temperature=temperature)
