"""A stack of blocks: the options that architectures share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from blockyard.contracts import (
    Architecture,
    BlockOrder,
    Context,
    DataSpec,
    Depth,
    Heads,
    InitShape,
    Model,
    Parts,
    Positive,
    Rate,
    TokenMixer,
    TokenSpec,
    Width,
)
from blockyard.model._ngrams import ROWS, Rows, Size, checked_ngrams
from blockyard.model._prefix import NO_PREFIX, Prefix
from blockyard.model._transformer import Sees, Transformer
from blockyard.token_mixer.attention import Attention

CROSS: Callable[[Context], TokenMixer] = partial(Attention)  # the default cross-attention mixer


class Stack(Architecture):
    """A stack of equal blocks.

    Options:
        dim: channels of a token (D)
        depth: blocks, each with weights of its own
        order: the index of the block at each visit, such as [0,1,2,1,2,3]: a block that is visited twice shares its
            weights with itself; null visits each block once
        heads: heads of attention (H); must divide dim
        prefix: class_token, and a number of registers: learned tokens in front of every sequence
        init_std: standard deviation of initial weights, null is 1 / sqrt(D); layers that write into the stream start
            smaller, by the square root of the number of branches that a token passes
        init_shape: distribution of initial weights of that standard deviation: normal, or uniform within sqrt(3) of it
        zero_branches: layers that write into the stream start at zero, so that every block starts as the identity, as
            in modded-nanogpt
        ngrams: sizes, such as [2,3] for pairs and triples: each token gets a vector of its last 2 and its last 3 token
            ids added, its own id included
        ngram_rows: rows of the table of each size; a hash of the ids chooses one
        embed_norm: a norm in front of the first block, as in ModernBERT, over tokens with their added positions and the
            prefix
        smear: add to each token a gated share of the vector of the token before it
        backout: number of visits of blocks after which the stream is kept; a trained multiple of it, at first 0.2, is
            taken out in front of the final norm; null takes nothing out
        unit_weights: keep every matrix at vectors of length one along the width of the stream, as in nGPT, from before
            the first step on
        dropout: dropout rate on the tokens as they enter the first block
    """

    def __init__(
        self,
        *,
        dim: Width = 64,
        depth: Depth = 4,
        order: BlockOrder | None = None,
        heads: Heads = 4,
        prefix: Prefix = NO_PREFIX,
        init_std: Positive | None = None,
        init_shape: InitShape = "normal",
        zero_branches: bool = False,
        ngrams: tuple[Size, ...] = (),
        ngram_rows: Rows = ROWS,
        embed_norm: bool = False,
        smear: bool = False,
        backout: Depth | None = None,
        unit_weights: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        self.dim = dim
        self.depth = depth
        self.heads = heads
        self.prefix = prefix
        self.dropout = dropout
        self.init_std = init_std
        self.init_shape = init_shape
        self.zero_branches = zero_branches
        self.embed_norm = embed_norm
        self.smear = smear
        self.backout = backout
        self.unit_weights = unit_weights
        self.ngrams = checked_ngrams(ngrams, ngram_rows)
        self.order = complete_order("order", order, depth)
        if zero_branches and unit_weights:
            raise ValueError(
                "model.zero_branches=true has no place in model.unit_weights=true, where no weight is zero"
            )

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Return the Context of this stack. Raises ValueError if heads does not divide dim."""
        ctx = Context(
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            causal=self.causal,
            tokens=tokens,
            data=data,
            outputs=outputs,
            num_prefix=len(self.prefix),
            # Unit inputs give unit outputs, and vectors enter the stream at the same size.
            init_std=self.init_std or self.dim**-0.5,
            order=self.order,
            zero_branches=self.zero_branches,
            init_shape=self.init_shape,
        )
        assert ctx.head_dim > 0  # raises ValueError if heads does not divide dim
        return ctx

    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model of `ctx`. Raises ValueError if its parts contradict each other."""
        return self.transformer(ctx, parts)

    def transformer(self, ctx: Context, parts: Parts, *, sees: Sees = "past") -> Transformer:
        """Return the blocks of `ctx` with the options of this stack. sees: an option of Decoder."""
        return Transformer(
            ctx,
            parts,
            prefix=self.prefix,
            dropout=self.dropout,
            ngrams=self.ngrams,
            embed_norm=self.embed_norm,
            smear=self.smear,
            backout=self.backout,
            unit_weights=self.unit_weights,
            sees=sees,
        )


def complete_order(option: str, order: BlockOrder | None, depth: int) -> tuple[int, ...] | None:
    """Return the order in which blocks run. Raises ValueError if it names an unknown block or leaves one out."""
    if order is None:
        return None
    beyond = [index for index in order if index >= depth]
    if beyond:
        raise ValueError(
            f"model.{option} visits block {beyond[0]}, and the depth of {depth} gives the blocks 0 to {depth - 1}; "
            f"use a depth of {max(order) + 1}"
        )
    left_out = sorted(set(range(depth)) - set(order))
    if left_out:
        raise ValueError(
            f"model.{option} never visits block {left_out[0]}, whose weights would not be used; name every block from "
            f"0 to {depth - 1}"
        )
    return tuple(order)


def crossing(factory: Callable[[Context], TokenMixer]) -> Callable[[Context], TokenMixer]:
    """Return the factory of a cross-attention mixer. Raises ValueError if its mixer cannot read a memory."""
    node: Any = factory
    if not node.func.traits_for(node.keywords).cross:
        raise ValueError(
            f"model.cross: {node.func.__name__} cannot read a memory; use a mixer that declares `cross`, such as "
            "blockyard.token_mixer.attention.Attention"
        )
    return factory
