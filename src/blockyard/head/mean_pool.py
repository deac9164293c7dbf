"""Mean pool: a linear layer on the average of all tokens.

Source: Lin et al. 2014, Network In Network (arXiv 1312.4400), section 3.2; Beyer et al. 2022 (arXiv 2205.01580)
Reference: timm models/vision_transformer.py, global_pool="avg"
Equation: W mean_t(x_t) + b
Cost: O(N D + D V) time
"""

from __future__ import annotations

from torch import Tensor

from blockyard.contracts import Seq
from blockyard.head._pooled import Pooled, tokens_and_mask


class MeanPool(Pooled):
    """Leaves out padding and prefix tokens. Small initial weights (init_std) make first predictions near uniform."""

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, D); zero for a sequence without tokens."""
        x, valid = tokens_and_mask(x, seq)
        if valid is None:
            return x.mean(1)
        total = x.masked_fill(~valid[:, :, None], 0.0).sum(1)  # (B, D)
        return total / valid.sum(1, keepdim=True).clamp(min=1)  # (B, D)
