"""The model of encoder and decoder: a tower over the tokens, and a head.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm --> head
               |                                                  ^
               +---- Seq: index, coords, valid, segment ----------+---- position.rotate, position.bias
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from blockyard.contracts import Context, Embedder, Inputs, Parts, Rate, Seq
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_no_source, check_parts
from blockyard.model._prefix import Prefix
from blockyard.model._record import Record, note
from blockyard.model._tower import Tower

Sees = Literal["past", "source"]


class Transformer(Tower):
    """Blocks over tokens: forward(inputs, cache, record) -> (B, V) or (B, N, V).

    sees: "source" lets the tokens in front of the start token see each other, in a sequence with a source
    """

    def __init__(self, ctx: Context, parts: Parts, *, prefix: Prefix, dropout: Rate, sees: Sees = "past") -> None:
        super().__init__(ctx, parts, prefix=prefix, dropout=dropout)
        self.sees = sees
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_parts(ctx, prefix, self.position, self.mixers, self.head)

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions for a batch. With a cache, `inputs` are the new tokens only."""
        inputs = Inputs.of(inputs)
        check_no_source(self, inputs)
        x, seq = self.forward_features(inputs, cache, record)
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def embed_tokens(
        self, inputs: Inputs, record: Record | None = None, *, start: int = 0, embedder: Embedder | None = None
    ) -> tuple[Tensor, Seq]:
        """As `Embeds.embed_tokens`; in a model that sees the source, with the facts of which tokens are its own.

        Raises ValueError for a source that comes in several calls, whose first tokens could not see the last ones.
        """
        x, seq = super().embed_tokens(inputs, record, start=start, embedder=embedder)
        if self.sees == "source":
            assert self.ctx.tokens.start is not None
            starts = inputs.inputs.eq(self.ctx.tokens.start)  # (B, N)
            if int(seq.index[0]) == 0:
                seq.shown = starts.cumsum(-1) == 0
            elif bool(starts.any()):
                raise ValueError("model.sees=source reads a whole source in the first call; it came in several")
        return x, seq
