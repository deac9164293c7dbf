"""Sizes that architectures share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from blockyard.contracts import Architecture, Context, Count, DataSpec, Parts, Positive, Rate, TokenMixer, TokenSpec
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.model._transformer import Transformer
from blockyard.token_mixer.attention import Attention

CROSS: Callable[[Context], TokenMixer] = partial(Attention)  # what looks at another row where nothing else is named


class Stack(Architecture):
    """A stack of like blocks.

    Options:
        dim: channels of a token (D)
        depth: blocks
        heads: heads of attention (H); must divide dim
        prefix: class_token, and a number of registers, learned tokens in front of every row
        init_std: spread of initial weights, null means 1 / sqrt(D); what writes into the stream starts
            smaller, by the square root of how many branches do
        dropout: rate on the tokens as they enter the first block, while training
    """

    def __init__(
        self,
        *,
        dim: Count = 64,
        depth: Count = 4,
        heads: Count = 4,
        prefix: Prefix = NO_PREFIX,
        init_std: Positive | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        self.dim, self.depth, self.heads = dim, depth, heads
        self.prefix, self.init_std, self.dropout = prefix, init_std, dropout

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """The Context of this stack. Raises ValueError where the sizes do not divide."""
        ctx = Context(
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            causal=self.causal,
            tokens=tokens,
            data=data,
            outputs=outputs,
            num_prefix=len(self.prefix),
            # Unit inputs give unit outputs; what is added to the stream starts at the same size.
            init_std=self.init_std or self.dim**-0.5,
        )
        assert ctx.head_dim > 0
        return ctx

    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """The model of `ctx`. Raises ValueError where parts contradict each other."""
        return Transformer(ctx, parts, prefix=self.prefix, dropout=self.dropout)


def crossing(factory: Callable[[Context], TokenMixer]) -> Callable[[Context], TokenMixer]:
    """The factory of a mixer that is to look at a memory. Raises ValueError where its mixer cannot."""
    held: Any = factory
    if not held.func.traits_for(held.keywords).cross:
        raise ValueError(
            f"model.cross: {held.func.__name__} cannot look at a memory; use one that declares `cross`, such as "
            "blockyard.token_mixer.attention.Attention"
        )
    return factory
