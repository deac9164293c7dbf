"""Joint: one causal sequence of two kinds, the tokens of the source in front of those that are written.

Source: Wang et al. 2022, GIT: A Generative Image-to-text Transformer for Vision and Language (arXiv 2205.14100); for
    sees=source Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences (arXiv 1801.10198), and the
    prefix language model of Raffel et al. 2020 (arXiv 1910.10683), figure 4
Reference: transformers GitForCausalLM
Cost: that of its blocks over M + N tokens

    [prefix | source 1 ... M | token 1 ... N]      a token sees the source, and the tokens before it
                                                   sees=source: the source sees all of itself, as in GIT
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import nn

from blockyard.contracts import Context, Depth, Heads, Parts, Positive, Rate, Width
from blockyard.model._joint import JointModel
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.model._stack import Stack


class Joint(Stack):
    """Source and sequence in one stack of blocks, so that neither an encoder nor cross-attention is needed.

    Each part is placed by its own scheme, which the tokens of the source get added before the first block; a scheme
    that acts inside mixers acts in the sequence's own part. All sources must be of one length.

    Options:
        types: a learned vector for each of the two kinds, added to its tokens
        sees: what a token of the source sees: of the source what is in front of it (past), or all of it (source)
    """

    causal: ClassVar[bool] = True
    takes_source: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def __init__(
        self,
        *,
        dim: Width = 64,
        depth: Depth = 4,
        heads: Heads = 4,
        prefix: Prefix = NO_PREFIX,
        types: bool = True,
        sees: Literal["past", "source"] = "past",
        init_std: Positive | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(dim=dim, depth=depth, heads=heads, prefix=prefix, init_std=init_std, dropout=dropout)
        self.types, self.sees = types, sees

    @classmethod
    def ties(cls, options: dict[str, Any]) -> bool:
        """Whether the tokens of a source see each other."""
        return options.get("sees") == "source"

    def mixing(self, ctx: Context) -> Context:
        """Returns the Context of the joined sequence, whose prefix holds the source."""
        return joined(ctx)

    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """Returns the model of `ctx`. Raises ValueError if parts contradict each other, or the data has no source."""
        return JointModel(
            joined(ctx),
            of_the_source(ctx),
            parts,
            prefix=self.prefix,
            types=self.types,
            ties=self.sees == "source",
            dropout=self.dropout,
        )


def joined(ctx: Context) -> Context:
    """Returns the Context of a sequence with its source in front, where the data has one."""
    if ctx.data.source is None:
        return ctx
    return replace(ctx, num_prefix=ctx.num_prefix + ctx.source_tokens.max_len)


def of_the_source(ctx: Context) -> Context:
    """Returns the Context of the source alone. Raises ValueError if the data has none."""
    if ctx.data.source is None:
        raise ValueError("a joint model reads a source and the data has none; use model=decoder or model=encoder")
    return replace(ctx, tokens=ctx.source_tokens, data=ctx.data.source, source=None)
