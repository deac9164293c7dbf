"""Joint: one causal sequence of two kinds of tokens, the source in front of the sequence that is written.

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

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import (
    ChoiceOptions,
    Context,
    Inputs,
    Memory,
    Model,
    Parts,
    Rate,
    Role,
    Seq,
)
from blockyard.contracts.inherited_options import with_options_of
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_call, check_only_embeds, check_parts
from blockyard.model._embedding import Embeds
from blockyard.model._prefix import Prefix
from blockyard.model._record import Record, note
from blockyard.model._source_model import SourceModel, of_source
from blockyard.model._stack import Stack
from blockyard.weight_init import Init


class Types(nn.Module):
    """A learned vector for each kind of token: of the source, and of the sequence."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"vectors"})
    roles: ClassVar[dict[str, Role]] = {"vectors": "input"}

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(2, ctx.dim))  # (2, D)

    def init_weights(self, init: Init) -> None:
        """Draw normal vectors."""
        init.normal("vectors")

    def forward(self, x: Tensor, kind: int) -> Tensor:
        """x (B, N, D) -> (B, N, D). kind: 0 for the source, 1 for the sequence."""
        return x + self.vectors[kind].to(x.dtype)


class SourceTokens(Embeds):
    """The embedder and the position scheme of the source: forward(source) -> x (B, M, D), Seq."""

    def __init__(self, ctx: Context, parts: Parts) -> None:
        super().__init__(ctx, parts)
        check_only_embeds(ctx, self.position, "mixers leave the source alone")

    def forward(self, source: Tensor) -> tuple[Tensor, Seq]:
        """Return the tokens (B, M, D) of a source (`Batch.source`) and their facts."""
        return self.embed_tokens(Inputs(source))  # (B, M, D)


class JointModel(SourceModel):
    """One sequence of two kinds: forward(inputs, cache, record) -> (B, V) or (B, N, V).

    The tokens of the source count as prefix (`Seq.num_prefix`), so that heads, windows and the position scheme leave
    them alone as they do class and register tokens.

    ctx: the Context of the joined sequence
    source_ctx: the Context of the source alone
    ties: the tokens of the source have one index, so that they see each other in a causal model
    """

    def __init__(
        self,
        ctx: Context,
        source_ctx: Context,
        parts: Parts,
        *,
        prefix: Prefix,
        types: bool,
        ties: bool,
        dropout: Rate,
    ) -> None:
        super().__init__(ctx, parts, prefix=prefix, dropout=dropout)
        self.source = SourceTokens(source_ctx, of_source(parts))
        self.types = Types(ctx) if types else None
        self.ties = ties
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_parts(ctx, prefix, self.placed_mixers(), self.head)

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions for the tokens of the sequence. With a cache, `inputs` are the new tokens only.

        The source comes as in `Batch.source`, as the `memory` that `encode` returned, or in the cache, which keeps the
        memory of its first call. Raises ValueError unless it comes in exactly one of these ways.
        """
        inputs = Inputs.of(inputs, cache)
        memory = self.memory_of(inputs, cache, record)
        check_call(self.ctx, self.prefix_options, inputs, cache is not None)
        past = 0 if cache is None else cache.length
        x, seq = self.embed_tokens(inputs, record, start=past)  # (B, N, D)
        new = len(seq)
        x = x if self.types is None else self.types(x, 1)
        if past == 0:
            x, seq = self._behind(memory, x, seq)  # (B, M + N, D)
        else:  # the cache has the keys of the source
            seq.index = seq.index + (1 if self.ties else len(memory.seq))
        x, seq = self._add_prefix(x, seq, past)  # (B, prefix + M + N, D)
        x = self.mixed(x, seq, cache, None, record)
        if cache is not None:
            cache.length = past + new
            cache.memory = memory
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, record: Record | None = None) -> Memory:
        """Return the tokens of a source (`Batch.source`): x (B, M, D) and their facts.

        Raises ValueError for sources of different lengths: padding would stand inside the joined sequence.
        """
        if source_lengths is not None:
            raise ValueError("sources of different lengths cannot stand in front of a sequence; use one length")
        x, seq = self.source(source)
        x = x if self.types is None else self.types(x, 0)
        note(record, "source.placed", x)
        return Memory(x, seq)

    def _behind(self, memory: Memory, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """Return the source with the sequence x (B, N, D) behind it: (B, M + N, D), and the facts of both."""
        count = len(memory.seq)
        # A causal mask compares indices, so that tokens of one index see each other.
        first = torch.zeros_like(memory.seq.index) if self.ties else torch.arange(count, device=seq.index.device)
        front = (count, 0)
        joined = replace(
            seq,
            index=torch.cat([first, seq.index + (1 if self.ties else count)]),  # (M + N,)
            coords=F.pad(seq.coords, (0, 0, *front)),
            valid=None if seq.valid is None else F.pad(seq.valid, front, value=True),
            segment=None if seq.segment is None else F.pad(seq.segment, front, value=-1),
            num_prefix=count,
            ties=self.ties,
            features=None if seq.features is None else F.pad(seq.features, (0, 0, *front)),
            pairs=None if seq.pairs is None else tuple(F.pad(pair, (*front, *front)) for pair in seq.pairs),
            ids=None if seq.ids is None else F.pad(seq.ids, front, value=-1),
            memo={},  # masks of the sequence alone do not fit the joined one
        )
        return torch.cat([memory.x.to(x.dtype), x], dim=1), joined


class Joint(Stack):
    """Source and sequence in one stack of blocks, so that neither an encoder nor cross-attention is needed.

    Source and sequence each have their own position scheme. The scheme of the source is added to its tokens before the
    first block; a scheme that acts inside mixers acts on the tokens of the sequence alone. All sources must be of one
    length.

    Options:
        types: a learned vector for each of the two kinds, added to its tokens
        sees: tokens that a token of the source sees: the source before it (past), or all of the source (source)
    """

    causal: ClassVar[bool] = True
    takes_source: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @with_options_of(Stack, only=("dim", "depth", "order", "heads", "prefix", "init_std", "dropout"))
    def __init__(self, *, types: bool = True, sees: Literal["past", "source"] = "past", **options: Any) -> None:
        super().__init__(**options)
        self.types = types
        self.sees = sees

    @classmethod
    def ties(cls, options: ChoiceOptions) -> bool:
        """Return whether the tokens of a source see each other."""
        return options.get("sees") == "source"

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
            ties=self.sees == "source",
            dropout=self.dropout,
        )


def joined(ctx: Context) -> Context:
    """Return the Context of a sequence with its source in front, where the data has one."""
    if ctx.data.source is None:
        return ctx
    return replace(ctx, num_prefix=ctx.num_prefix + ctx.source_tokens.max_len)


def of_the_source(ctx: Context) -> Context:
    """Return the Context of the source alone. Raises ValueError if the data has none."""
    if ctx.data.source is None:
        raise ValueError("a joint model reads a source and the data has none; use model=decoder or model=encoder")
    return replace(ctx, tokens=ctx.source_tokens, data=ctx.data.source, source=None)
