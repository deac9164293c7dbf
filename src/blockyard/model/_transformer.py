"""The model of encoder and decoder: a tower over the tokens, and a head.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm --> head
               |                                                  ^
               +---- Seq: index, coords, valid, segment ----------+---- position.rotate, position.bias
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from blockyard.contracts import Context, Parts, Rate
from blockyard.model._cache import Cache, empty
from blockyard.model._compatibility import check_parts
from blockyard.model._example_batch import example
from blockyard.model._prefix import Prefix
from blockyard.model._tower import Tower
from blockyard.ops import kernel


class Transformer(Tower):
    """Blocks over tokens: forward(inputs, lengths, segment, cache) -> (B, V) or (B, N, V)."""

    def __init__(self, ctx: Context, parts: Parts, *, prefix: Prefix, dropout: Rate) -> None:
        super().__init__(ctx, parts, prefix=prefix, dropout=dropout)
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_parts(ctx, prefix, self.position, self.mixers, self.head)

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Predictions for a batch. With a cache, `inputs` are the new tokens only."""
        prediction = None
        for _, prediction in self._steps(inputs, lengths, segment, cache):  # noqa: B007 - the last one counts
            pass
        return prediction

    def steps(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
    ) -> dict[str, Any]:
        """Every intermediate of a forward pass by name, so that a probe needs no hooks.

        embedded (B, N, D - position.width); placed (B, N, D); stream, block.0, block.1, ... and normed
        (B, prefix + N, D); seq, the facts of that row; prediction.
        """
        return dict(self._steps(inputs, lengths, segment, cache))

    def _steps(
        self, inputs: Tensor, lengths: Tensor | None, segment: Tensor | None, cache: Cache | None
    ) -> Iterator[tuple[str, Any]]:
        x = seq = None
        for name, x in self.walk(self.embedder, inputs, lengths, segment, cache):
            seq = x if name == "seq" else seq
            yield name, x
        yield "prediction", self.head(x, seq)

    def init_cache(self, batch_size: int) -> Cache:
        """An empty cache for `batch_size` rows. Raises ValueError naming the mixer that cannot have one."""
        return empty(self.mixers, batch_size)

    def kernels(
        self,
        inputs: Tensor | None = None,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> list[kernel.Record]:
        """Which kernel each layer's mixer takes for this batch, and why none faster.

        Without a batch, one full row of zeros is asked about, on the model's device, with the lengths
        and segments that such data brings.
        """
        if inputs is None:
            return kernel.record(self, **example(self.ctx, next(self.parameters()).device))
        return kernel.record(self, inputs, lengths, segment)
