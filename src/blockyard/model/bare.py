"""Bare: no blocks; the tokens go straight to the head. With tokenizer=timm this is a plain CNN.

Source: He et al. 2016, Deep Residual Learning (arXiv 1512.03385), for the CNN that tokenizer=timm makes of it
Reference: timm.create_model
Cost: that of the tokenizer's network
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from blockyard.contracts import Architecture, Context, DataSpec, Parts, Positive, Rate, TokenSpec, Width
from blockyard.model._bare import Bare


class BareModel(Architecture):
    """The baseline for models with blocks. The parts of a block are all `none`, so that no option is ignored.

    Options:
        dim: channels of a token (D)
        init_std: standard deviation of the head's initial weights; null is 1 / sqrt(D)
        dropout: dropout rate on the tokens
    """

    causal: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __init__(self, *, dim: Width = 64, init_std: Positive | None = None, dropout: Rate = 0.0) -> None:
        self.dim, self.init_std, self.dropout = dim, init_std, dropout

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Returns the Context of the tokenizer and the head."""
        return Context(
            dim=self.dim,
            depth=1,
            heads=1,
            causal=False,
            tokens=tokens,
            data=data,
            outputs=outputs,
            init_std=self.init_std or self.dim**-0.5,
        )

    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """Returns the model of `ctx`. Raises ValueError if its parts contradict each other."""
        return Bare(ctx, parts, dropout=self.dropout)
