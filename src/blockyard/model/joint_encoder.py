"""Joint encoder: one sequence of two kinds in which every token sees every other.

Source: Kim et al. 2021, ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision
    (arXiv 2102.03334), section 3.1
Reference: transformers ViltForQuestionAnswering
Cost: that of its blocks over M + N tokens

    [class | registers | source 1 ... M | token 1 ... N]
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.contracts import BlockOrder, Context, Depth, Heads, Model, Parts, Positive, Rate, Width
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.model._stack import Stack
from blockyard.model.joint import JointModel, joined, of_the_source


class JointEncoder(Stack):
    """The bidirectional twin of joint, for one answer to both kinds: head=class_token model.prefix.class_token=true.

    Options:
        types: a learned vector for each of the two kinds, added to its tokens
    """

    causal: ClassVar[bool] = False
    takes_source: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def __init__(
        self,
        *,
        dim: Width = 64,
        depth: Depth = 4,
        order: BlockOrder | None = None,
        heads: Heads = 4,
        prefix: Prefix = NO_PREFIX,
        types: bool = True,
        init_std: Positive | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(
            dim=dim, depth=depth, order=order, heads=heads, prefix=prefix, init_std=init_std, dropout=dropout
        )
        self.types = types

    def mixing(self, ctx: Context) -> Context:
        """Return the Context of the joined sequence, whose prefix holds the source."""
        return joined(ctx)

    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model of `ctx`. Raises ValueError if parts contradict each other, or the data has no source."""
        return JointModel(
            joined(ctx),
            of_the_source(ctx),
            parts,
            prefix=self.prefix,
            types=self.types,
            ties=False,
            dropout=self.dropout,
        )
