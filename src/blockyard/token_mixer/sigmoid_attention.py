"""Sigmoid attention: the weight of each key is a sigmoid of its own score, so that keys do not compete.

Source: Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention (arXiv 2409.04431)
Reference: the authors' ml-sigmoid-attention; x-transformers Attend(sigmoid=True), with the bias as `attn_bias`
Equation: y_i = sum_j sigmoid(q_i k_j / sqrt(K) + b) v_j over the keys j that token i sees, b = -ln n, with
    score_bias    length    n tokens of the longest sequence    keys    n keys that token i sees
Cost: O(N^2 D) time, O(N^2) memory in each head: no fused kernel computes the weights

    With b = -ln n each of n keys with a score of zero has the weight 1 / (n + 1): they add up to nearly one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from blockyard.contracts import ChoiceOptions, Context, Traits
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.custom_weights import logistic
from blockyard.token_mixer._rule_attention import RuleAttention
from blockyard.token_mixer.attention import Attention


class SigmoidAttention(RuleAttention):
    """The weights of a token add up to any number between zero and the number of keys.

    Options:
        score_bias: n of the bias -ln n of every score: the length of the longest sequence of the task (length), as in
            the paper, or the number of keys that a token sees (keys); a memory, of another length, needs keys
    """

    fades = "its weights add up to more where random scores are larger, as they are in narrow models before training"

    @with_options_of(
        Attention, only=("num_kv_heads", "qk_norm", "bias", "dropout", "gate", "value_residual", "value_embedding")
    )
    def __init__(self, ctx: Context, *, score_bias: Literal["length", "keys"] = "length", **options: Any) -> None:
        super().__init__(ctx, **options)
        self.traits = _traits(self.traits, score_bias)
        longest = ctx.tokens.max_len + ctx.num_prefix
        shift = -math.log(longest) if score_bias == "length" else None
        self.rule = partial(logistic, shift=shift)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits of attention, with score_bias=length without memories."""
        return _traits(super().traits_for(options), options.get("score_bias", "length"))


def _traits(traits: Traits, score_bias: str) -> Traits:
    return replace(traits, cross=traits.cross and score_bias == "keys")
