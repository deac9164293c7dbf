"""The base of attention with weights other than a softmax over all keys: a rule of `ops.custom_weights`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops.custom_weights import Rule, weigh
from blockyard.ops.mask import Visibility
from blockyard.token_mixer.attention import Attention


class RuleAttention(Attention):
    """Attention with weights that `rule` computes from queries and keys. Subclasses set `rule`."""

    fused: ClassVar[bool] = False
    rule: Rule

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Do nothing: these layers share no masks."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq, visibility: Visibility) -> Tensor:
        """Attend with the weights of the rule and join the heads: (B, N, H values)."""
        rate = self.dropout if self.training else 0.0
        y = weigh(q, k, v, seq, k_seq, visibility, rule=self.rule, scale=self.scale, dropout=rate)
        return y.transpose(1, 2).flatten(2)  # (B, N, H values)
