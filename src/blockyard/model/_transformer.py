"""The model of encoder and decoder: a tower over the tokens, and a head.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm --> head
               |                                                  ^
               +---- Seq: index, coords, valid, segment ----------+---- position.rotate, position.bias
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from blockyard.contracts import Context, Embedder, Parts, Rate, Seq
from blockyard.model._cache import Cache, empty_cache
from blockyard.model._compatibility import check_parts
from blockyard.model._example_batch import record_kernels
from blockyard.model._prefix import Prefix
from blockyard.model._record import Record, note
from blockyard.model._tower import Tower
from blockyard.ops import kernel

Sees = Literal["past", "source"]


class Transformer(Tower):
    """Blocks over tokens: forward(inputs, lengths, segment, cache) -> (B, V) or (B, N, V).

    sees: "source" lets the tokens in front of the start token see each other, in a sequence with a source
    """

    def __init__(self, ctx: Context, parts: Parts, *, prefix: Prefix, dropout: Rate, sees: Sees = "past") -> None:
        super().__init__(ctx, parts, prefix=prefix, dropout=dropout)
        self.sees = sees
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_parts(ctx, prefix, self.position, self.mixers, self.head)

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
        record: Record | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """Returns the predictions for a batch. With a cache, `inputs` are the new tokens only."""
        x, seq = self.forward_features(
            self.embedder, inputs, lengths, segment, cache, pairs=pairs, record=record, hidden=hidden
        )
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def placed(self, embedder: Embedder, inputs: Tensor, *rest: Any) -> tuple[Tensor, Seq]:
        """As `Tower.placed`; in a model that sees the source, with the facts of which tokens are its own.

        Raises ValueError for a source that comes in several calls, whose first tokens could not see the last ones.
        """
        x, seq = super().placed(embedder, inputs, *rest)
        if self.sees == "source":
            assert self.ctx.tokens.start is not None
            starts = inputs.eq(self.ctx.tokens.start)  # (B, N)
            if int(seq.index[0]) == 0:
                seq.shown = starts.cumsum(-1) == 0
            elif bool(starts.any()):
                raise ValueError("model.sees=source reads a whole source in the first call; it came in several")
        return x, seq

    def steps(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Record:
        """Returns every intermediate of a forward pass by name, so that a probe needs no hooks.

        embedded (B, N, D - position.width); placed (B, N, D); seq, the facts of the tokens with the prefix; stream,
        block.0, block.1, ... and normed (B, prefix + N, D); prediction.
        """
        record: Record = {}
        self.forward(inputs, lengths, segment, cache, record, hidden, pairs)
        return record

    def init_cache(self, batch_size: int) -> Cache:
        """Returns an empty cache for `batch_size` sequences. Raises ValueError for a mixer that cannot have one."""
        return empty_cache(self.mixers, batch_size)

    def kernels(
        self,
        inputs: Tensor | None = None,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> list[kernel.Record]:
        """Returns the kernel that each layer's mixer takes for this batch, and why none faster.

        Without `inputs`, the batch is one full sequence of zeros on the model's device, with the lengths and
        segments that its data brings.
        """
        return record_kernels(self, inputs, lengths=lengths, segment=segment, hidden=hidden, pairs=pairs)
