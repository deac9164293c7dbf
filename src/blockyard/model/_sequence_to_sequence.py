"""The model of encoder_decoder: a tower over the source, and one over the target whose blocks look at it.

source --> [embedder] --(its places)--> block --> ... --> norm = memory
               |  one table, or one each                    |  (cross-attention, no positions)
inputs --> embedder --(its places)-----> block --> ... <----+--> final norm --> head
                                         causal
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from blockyard.contracts import Context, Memory, Parts, Rate, TokenMixer
from blockyard.model._cache import Cache, empty
from blockyard.model._compatibility import check_parts
from blockyard.model._example_batch import example
from blockyard.model._prefix import NO_PREFIX
from blockyard.model._tower import Tower
from blockyard.ops import kernel


class SequenceToSequence(Tower):
    """forward(inputs, lengths, segment, cache, source, source_lengths) -> (B, N, V).

    The tower over the target is the model itself, so that its parts have the names of a decoder's; the other
    one is `encoder`. A scheme of positions acts in each by its own coordinates, and in cross-attention not at
    all: how far a word of one text lies from a word of the other says nothing.
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
        self.encoder = Tower(source_ctx, parts, prefix=NO_PREFIX, dropout=dropout, embedder=embedder)
        if self.encoder.position.width != self.position.width and shared:
            raise ValueError(
                f"position {type(self.position).__name__} takes {self.encoder.position.width} channels of the source "
                f"and {self.position.width} of the target, so they cannot share an embedder; use model.shared=false"
            )
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        for tower in (self, self.encoder):
            check_parts(tower.ctx, NO_PREFIX, tower.position, tower.mixers, self.head)

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
        source: Tensor | None = None,
        source_lengths: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Predictions for a batch. With a cache, `inputs` are the new tokens only.

        The source is given as symbols (B, M), as the `memory` that `encode` made of them, or was given with
        the first tokens of the cache. Raises ValueError where it is given twice or never.
        """
        prediction = None
        given = (inputs, lengths, segment, cache, source, source_lengths, memory)
        for _, prediction in self._steps(*given):  # noqa: B007 - the last one counts
            pass
        return prediction

    def encode(self, source: Tensor, source_lengths: Tensor | None = None) -> Memory:
        """What the decoder looks at, of source symbols (B, M): x (B, M, D) and the facts of its row."""
        return dict(self._encode(source, source_lengths))["memory"]

    def steps(self, inputs: Tensor, *rest: Any, **named: Any) -> dict[str, Any]:
        """Every intermediate of a forward pass by name, so that a probe needs no hooks.

        Those of a decoder, and the encoder's, which have "source." in front; memory; prediction.
        """
        names = ("lengths", "segment", "cache", "source", "source_lengths", "memory")
        given = dict(zip(names, rest, strict=False)) | named
        return dict(self._steps(inputs, *(given.get(name) for name in names)))

    def _steps(
        self,
        inputs: Tensor,
        lengths: Tensor | None,
        segment: Tensor | None,
        cache: Cache | None,
        source: Tensor | None,
        source_lengths: Tensor | None,
        memory: Memory | None,
    ) -> Iterator[tuple[str, Any]]:
        kept = cache.memory if cache is not None else None
        if sum(each is not None for each in (source, memory, kept)) != 1:
            raise ValueError(
                "an encoder-decoder reads one source: give `source` or `memory`, and neither to a cache that has one"
            )
        if source is not None:
            for name, value in self._encode(source, source_lengths):
                memory = value if name == "memory" else None
                yield name, value
        memory = kept if memory is None else memory
        x = seq = None
        for name, x in self.walk(self.embedder, inputs, lengths, segment, cache, memory):
            seq = x if name == "seq" else seq
            yield name, x
        if cache is not None:
            cache.memory = memory
        yield "prediction", self.head(x, seq)

    def _encode(self, source: Tensor, source_lengths: Tensor | None) -> Iterator[tuple[str, Any]]:
        tower = self.encoder
        embedder = tower.embedder if hasattr(tower, "embedder") else self.embedder
        x = seq = None
        for name, x in tower.walk(embedder, source, source_lengths, None):
            seq = x if name == "seq" else seq
            yield f"source.{name}", x
        yield "memory", Memory(x, seq)

    def init_cache(self, batch_size: int) -> Cache:
        """An empty cache for `batch_size` rows. Raises ValueError naming the mixer that cannot have one."""
        return empty(self.mixers, batch_size)

    def kernels(self, inputs: Tensor | None = None, **named: Tensor) -> list[kernel.Record]:
        """Which kernel each layer's mixers take for this batch, or for full rows of zeros, and why none faster."""
        if inputs is None:
            return kernel.record(self, **example(self.ctx, next(self.parameters()).device))
        return kernel.record(self, inputs, **named)
