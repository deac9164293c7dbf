"""What the models that read a source besides their inputs have in common: encoder_decoder, joint and joint_encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.contracts import Memory, Parts
from blockyard.model._cache import Cache, empty_cache
from blockyard.model._example_batch import record_kernels
from blockyard.model._record import Record
from blockyard.model._tower import Tower
from blockyard.ops import kernel


def of_source(parts: Parts) -> Parts:
    """Returns the parts of the tower over the source."""
    return parts._replace(
        embedder=parts.source_embedder or parts.embedder, position=parts.source_position or parts.position
    )


class SourceModel(Tower):
    """The tower over the sequence, with a source that `encode` reads."""

    def encode(self, source: Tensor, source_lengths: Tensor | None = None, record: Record | None = None) -> Memory:
        """Returns what the model reads of a source (`Batch.source`)."""
        raise NotImplementedError

    def memory_of(
        self,
        source: Tensor | None,
        source_lengths: Tensor | None,
        memory: Memory | None,
        cache: Cache | None,
        record: Record | None,
    ) -> Memory:
        """Returns the encoded source: of `source`, `memory` or `cache`. Raises ValueError unless it is in one."""
        cached = None if cache is None else cache.memory
        if sum(each is not None for each in (source, memory, cached)) != 1:
            raise ValueError(
                "a model reads one source: pass `source` or `memory`, and neither with a cache that has one"
            )
        if source is not None:
            return self.encode(source, source_lengths, record)
        encoded = memory or cached
        assert encoded is not None
        return encoded

    def steps(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Record:
        """Returns every intermediate of a forward pass by name; the arguments are those of `forward`.

        The names of `Transformer.steps`; those of the source with "source." in front; memory where a tower encodes it.
        """
        record: Record = {}
        self.forward(inputs, *args, **{**kwargs, "record": record})
        return record

    def init_cache(self, batch_size: int) -> Cache:
        """Returns an empty cache for `batch_size` sequences. Raises ValueError for a mixer that cannot have one."""
        return empty_cache(self.mixers, batch_size)

    def kernels(self, inputs: Tensor | None = None, **arguments: Tensor) -> list[kernel.Record]:
        """Returns the kernel each mixer takes for this batch, or for full sequences of zeros, and why none faster."""
        return record_kernels(self, inputs, **arguments)
