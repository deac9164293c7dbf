"""Encoder-decoder: blocks over a source, and causal blocks that read it through cross-attention.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.1; sharing the table of tokens
    as in its section 3.4
Reference: torch.nn.Transformer
Cost: that of its blocks, and O(N M D) time a layer for cross-attention

    source --> encoder blocks --> memory      a text, or anything else that a source_tokenizer reads
                                     |
    target --> [causal mixer --> cross mixer --> channel mixer] x depth --> head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from blockyard.contracts import (
    BlockOrder,
    ChoiceOptions,
    Context,
    DataSpec,
    Depth,
    Inputs,
    Memory,
    Model,
    Parts,
    Rate,
    TokenMixer,
    TokenSpec,
)
from blockyard.contracts.inherited_options import with_options_of
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_parts
from blockyard.model._prefix import NO_PREFIX
from blockyard.model._record import Record, note
from blockyard.model._source_model import SourceModel, of_source
from blockyard.model._stack import CROSS, Stack, complete_order, crossing
from blockyard.model._transformer import Tower


class SequenceToSequence(SourceModel):
    """Encoder and decoder: forward(inputs, cache, record) -> (B, N, V).

    The tower over the target is the model itself, so that its parts have the same names as in a decoder. The tower over
    the source is `encoder`. A position scheme acts inside each sequence and never in cross-attention: the distance
    between a token of one text and a token of the other means nothing.
    """

    def __init__(
        self,
        ctx: Context,
        source_ctx: Context,
        parts: Parts,
        *,
        cross: Callable[[Context], TokenMixer],
        shared: bool,
        dropout: Rate,
    ) -> None:
        super().__init__(ctx, parts, prefix=NO_PREFIX, dropout=dropout, cross=cross)
        embedder = self.embedder if shared else None
        self.encoder = Tower(source_ctx, of_source(parts), prefix=NO_PREFIX, dropout=dropout, embedder=embedder)
        if self.encoder.position.width != self.position.width and shared:
            raise ValueError(
                f"position {type(self.position).__name__} takes {self.encoder.position.width} channels of the source "
                f"and {self.position.width} of the target, so they cannot share an embedder; use model.shared=false"
            )
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        for tower in (self, self.encoder):
            check_parts(tower.ctx, NO_PREFIX, tower.placed_mixers(), self.head)

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions (B, V) or (B, N, V) for a batch. With a cache, `inputs` are the new tokens only.

        The source comes as in `Batch.source`, as the `memory` that `encode` returned, or in the cache, which keeps
        the memory of its first call. Raises ValueError unless it comes in exactly one of these ways.
        """
        inputs = Inputs.of(inputs, cache)
        memory = self.memory_of(inputs, cache, record)
        x, seq = self.forward_features(inputs, cache, record, memory=memory)
        if cache is not None:
            cache.memory = memory
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, record: Record | None = None) -> Memory:
        """Return the encoded source (`Batch.source`) that the decoder reads: x (B, M, D) and its facts."""
        # An encoder that shares the embedder of the decoder has none of its own.
        embedder = getattr(self.encoder, "embedder", self.embedder)
        inner: Record | None = None if record is None else {}
        inputs = Inputs(source, lengths=source_lengths)
        memory = Memory(*self.encoder.forward_features(inputs, record=inner, embedder=embedder))
        for name, value in (inner or {}).items():
            note(record, f"source.{name}", value)
        note(record, "memory", memory)
        return memory


class EncoderDecoder(Stack):
    """Trains with teacher forcing and generates token by token.

    A position scheme acts within each sequence and never between the two: cross-attention has no positions.

    Options:
        depth: blocks of the decoder
        order: the index of the decoder's block at each visit; null visits each block once
        encoder_depth: blocks of the encoder; null is the depth of the decoder
        encoder_order: the index of the encoder's block at each visit, as `order`
        cross: the mixer that reads the source, in every block of the decoder
        shared: one embedder for source and target; false if they are of different kinds
        dropout: dropout rate on the tokens of either sequence as they enter the first block
    """

    causal: ClassVar[bool] = True
    takes_source: ClassVar[bool] = True
    crosses: ClassVar[bool] = True

    @with_options_of(Stack, only=("dim", "order", "heads", "init_std", "dropout"))
    def __init__(
        self,
        *,
        depth: Depth = 2,
        encoder_depth: Depth | None = None,
        encoder_order: BlockOrder | None = None,
        cross: Callable[[Context], TokenMixer] = CROSS,
        shared: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(depth=depth, **options)
        self.encoder_depth = encoder_depth or depth
        self.encoder_order = complete_order("encoder_order", encoder_order, self.encoder_depth)
        self.cross, self.shared = crossing(cross), shared

    @classmethod
    def shares(cls, options: ChoiceOptions) -> bool:
        """Return whether source and target share an embedder."""
        return bool(options.get("shared", True))

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Return the Context of the decoder. Raises ValueError if heads does not divide dim."""
        visits = len(self.encoder_order or range(self.encoder_depth))
        return replace(super().context(data, tokens, outputs), peer=visits, branches=3)

    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model of `ctx`. Raises ValueError if parts contradict each other, or the data has no source."""
        if ctx.data.source is None:
            raise ValueError("model=encoder_decoder reads a source and the data has none; use model=decoder")
        if self.shared and parts.source_embedder is not None:
            raise ValueError("model.shared=true: source and target are of different kinds; use model.shared=false")
        source = replace(
            ctx,
            causal=False,
            depth=self.encoder_depth,
            order=self.encoder_order,
            peer=ctx.visits,
            branches=2,
            tokens=ctx.source_tokens,
            data=ctx.data.source,
            source=None,
        )
        return SequenceToSequence(ctx, source, parts, cross=self.cross, shared=self.shared, dropout=self.dropout)
