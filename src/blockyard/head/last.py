"""Last: a linear layer on the last token.

Source: Radford et al. 2018, Improving Language Understanding by Generative Pre-Training (GPT), section 3.2
Reference: transformers GPT2ForSequenceClassification
Equation: W x_N + b
Cost: O(D V) time
"""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.head._pooled import Pooled, tokens_and_mask


class Last(Pooled):
    """Reads the last token that is not padding: in a causal model the only one that sees the whole sequence."""

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, D); zero for a sequence without tokens."""
        x, valid = tokens_and_mask(x, seq)
        if valid is None:
            return x[:, -1]
        count = valid.sum(1)  # (B,), as padding is on the right
        samples = torch.arange(len(x), device=x.device)
        return x[samples, (count - 1).clamp_min(0)].masked_fill((count == 0)[:, None], 0.0)
