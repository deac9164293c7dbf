"""The model of encoder_decoder: a tower over the source, and one over the target whose blocks read the first.

source --> [embedder] --(position)--> block --> ... --> final norm = memory
               |  shared, or one each, of any kind        |  (cross-attention, no positions)
inputs --> embedder --(position)----> block --> ... <-----+--> final norm --> head
                                      causal
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from blockyard.contracts import Context, Inputs, Memory, Parts, Rate, TokenMixer
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_parts
from blockyard.model._prefix import NO_PREFIX
from blockyard.model._record import Record, note
from blockyard.model._source_model import SourceModel, of_source
from blockyard.model._tower import Tower


class SequenceToSequence(SourceModel):
    """Encoder and decoder: forward(inputs, cache, record) -> (B, N, V).

    The tower over the target is the model itself, so that its parts have the names of a decoder's; the tower over
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
            check_parts(tower.ctx, NO_PREFIX, tower.position, tower.mixers, self.head)

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions for a batch. With a cache, `inputs` are the new tokens only.

        The source comes as in `Batch.source`, as the `memory` that `encode` returned, or in the cache, which keeps
        the memory of its first call. Raises ValueError unless it comes in exactly one of these ways.
        """
        inputs = Inputs.of(inputs)
        memory = self.memory_of(inputs, cache, record)
        x, seq = self.forward_features(inputs, cache, record, memory=memory)
        if cache is not None:
            cache.memory = memory
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, record: Record | None = None) -> Memory:
        """Returns what the decoder reads of a source (`Batch.source`): x (B, M, D) and its facts."""
        embedder = getattr(self.encoder, "embedder", self.embedder)
        inner: Record | None = None if record is None else {}
        inputs = Inputs(source, lengths=source_lengths)
        memory = Memory(*self.encoder.forward_features(inputs, record=inner, embedder=embedder))
        for name, value in (inner or {}).items():
            note(record, f"source.{name}", value)
        note(record, "memory", memory)
        return memory
