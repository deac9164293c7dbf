"""Class token: a linear layer on the first prefix token.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 3; Dosovitskiy et al. 2021 (arXiv 2010.11929), eq. 4
Reference: timm models/vision_transformer.py, global_pool="token"
Equation: W x_class + b
Cost: O(D V) time
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from blockyard.contracts import Context, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.head._pooled import Pooled


class ClassToken(Pooled):
    """Requires model.prefix.class_token=true. Initial weights have standard deviation init_std.

    Options:
        hidden: activation of a hidden layer before the outputs, tanh for BERT's pooler; null means none
    """

    needs_class_token: ClassVar[bool] = True

    @with_options_of(Pooled)
    def __init__(self, ctx: Context, **options: Any) -> None:
        super().__init__(ctx, **options)
        if ctx.num_prefix == 0:
            raise ValueError(
                "head=class_token reads a class token and the model has none; use model.prefix.class_token=true "
                "or head=mean_pool"
            )

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, D)."""
        return x[:, 0]
