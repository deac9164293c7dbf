"""Bare: no blocks; what the tokenizer makes goes straight to the head. With tokenizer=timm a plain CNN.

Source: He et al. 2016, Deep Residual Learning (arXiv 1512.03385), for the CNN that tokenizer=timm makes of it
Reference: timm.create_model
Cost: that of the tokenizer's network
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from blockyard.contracts import Architecture, Context, Count, DataSpec, Parts, Positive, Rate, TokenSpec
from blockyard.model._bare import Bare


class BareModel(Architecture):
    """The baseline of models with blocks: the parts of a block are all `none`, so that nothing is ignored.

    Options:
        dim: channels of a token (D)
        init_std: spread of the head's initial weights, null means 1 / sqrt(D)
        dropout: rate on the tokens, while training
    """

    causal: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __init__(self, *, dim: Count = 64, init_std: Positive | None = None, dropout: Rate = 0.0) -> None:
        self.dim, self.init_std, self.dropout = dim, init_std, dropout

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """The Context of the tokenizer and the head."""
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
        """The model of `ctx`. Raises ValueError where parts contradict each other."""
        return Bare(ctx, parts, dropout=self.dropout)
