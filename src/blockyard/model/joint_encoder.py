"""Joint encoder: one sequence of two kinds in which every token sees every other.

Source: Kim et al. 2021, ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision
    (arXiv 2102.03334), section 3.1
Reference: transformers ViltForQuestionAnswering
Cost: that of its blocks over M + N tokens

    [class | registers | source 1 ... M | token 1 ... N]
"""

from __future__ import annotations

from typing import Any, ClassVar

from blockyard.contracts import Context, Model, Parts
from blockyard.contracts.inherited_options import with_options_of
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

    @with_options_of(Stack, only=("dim", "depth", "order", "heads", "prefix", "init_std", "dropout"))
    def __init__(self, *, types: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.types = types

    def mixer_context(self, ctx: Context) -> Context:
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
