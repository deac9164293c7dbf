"""Sum pool: a linear layer on the sum of all tokens.

Source: Xu et al. 2019, How Powerful are Graph Neural Networks? (arXiv 1810.00826), section 5: sums tell multisets
    apart that means and maxima confuse
Reference: torch_geometric.nn.global_add_pool
Equation: W sum_t(x_t) + b
Cost: O(N D + D V) time
"""

from __future__ import annotations

from torch import Tensor

from blockyard.contracts import Seq
from blockyard.head._pooled import Pooled, tokens_and_mask


class SumPool(Pooled):
    """Leaves out padding and prefix tokens. The prediction can grow with the number of tokens."""

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, D)."""
        x, valid = tokens_and_mask(x, seq)
        if valid is not None:
            x = x.masked_fill(~valid[:, :, None], 0.0)
        return x.sum(1)  # (B, D)
