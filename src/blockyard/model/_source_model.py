"""The base of models that read a source besides their inputs: encoder_decoder, joint and joint_encoder."""

from __future__ import annotations

from torch import Tensor

from blockyard.contracts import Inputs, Memory, Parts
from blockyard.model._cache import Cache
from blockyard.model._record import Record
from blockyard.model._transformer import Tower


def of_source(parts: Parts) -> Parts:
    """Return the parts of the tower over the source."""
    return parts._replace(
        embedder=parts.source_embedder or parts.embedder, position=parts.source_position or parts.position
    )


class SourceModel(Tower):
    """The tower over the sequence, with a source that `encode` reads."""

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, record: Record | None = None) -> Memory:
        """Return the encoded source (`Batch.source`) that the model reads."""
        raise NotImplementedError

    def memory_of(self, inputs: Inputs, cache: Cache | None, record: Record | None) -> Memory:
        """Return the encoded source of the inputs or of the cache. Raises ValueError unless exactly one has it."""
        cached = None if cache is None else cache.memory
        if sum(value is not None for value in (inputs.source, inputs.memory, cached)) != 1:
            raise ValueError(
                "a model reads one source: pass `source` or `memory`, and neither with a cache that has one"
            )
        if inputs.source is not None:
            return self.encode(inputs.source, inputs.source_lengths, record)
        encoded = inputs.memory or cached
        assert encoded is not None
        return encoded
