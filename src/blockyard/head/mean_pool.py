"""Mean pool: a linear layer on the average of all tokens.

Source: Lin et al. 2014, Network In Network (arXiv 1312.4400), section 3.2; Beyer et al. 2022 (arXiv 2205.01580)
Reference: timm models/vision_transformer.py, global_pool="avg"
Equation: W mean_t(x_t) + b
Cost: O(N D + D V) time
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.contracts import Context, Head, Seq
from blockyard.head._checks import check_one_document
from blockyard.ops.linear import linear


class MeanPool(Head):
    """Leaves out padding and prefix tokens. Small initial weights (init_std) make first predictions near uniform.

    Options:
        bias: use a bias on the outputs
    """

    gives: ClassVar[str] = "sequence"

    def __init__(self, ctx: Context, *, bias: bool = True) -> None:
        super().__init__()
        self.proj = linear(ctx, ctx.dim, ctx.outputs, bias=bias)

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, V); a sequence without tokens is pooled to zero."""
        check_one_document(self, seq)
        x = x[:, seq.num_prefix :]
        if seq.valid is None:
            return self.proj(x.mean(1))  # (B, V)
        valid = seq.valid[:, seq.num_prefix :, None]  # (B, N, 1)
        total = x.masked_fill(~valid, 0.0).sum(1)  # (B, D)
        return self.proj(total / valid.sum(1).clamp(min=1))  # (B, V)
