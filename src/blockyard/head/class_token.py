"""Class token: a linear layer on the first prefix token.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 3; Dosovitskiy et al. 2021 (arXiv 2010.11929), eq. 4
Reference: timm models/vision_transformer.py, global_pool="token"
Equation: W x_class + b
Cost: O(D V) time
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.contracts import Context, Head, Seq
from blockyard.head._checks import check_one_document
from blockyard.ops.linear import linear


class ClassToken(Head):
    """Requires model.prefix.class_token=true. Initial weights have standard deviation init_std.

    Options:
        bias: use a bias on the outputs
    """

    gives: ClassVar[str] = "sequence"
    needs_class_token: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, bias: bool = True) -> None:
        super().__init__()
        if ctx.num_prefix == 0:
            raise ValueError(
                "head=class_token reads a class token and the model has none; use model.prefix.class_token=true "
                "or head=mean_pool"
            )
        self.proj = linear(ctx, ctx.dim, ctx.outputs, bias=bias)

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, V)."""
        check_one_document(self, seq)
        return self.proj(x[:, 0])  # (B, V)
