"""The model of bare: an embedder and a head, with no blocks between them.

inputs --> embedder --(position.embed)--> head
"""

from __future__ import annotations

from torch import Tensor, nn

from blockyard.contracts import Context, Inputs, Parts, Rate, TokenMixer
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_no_cache, check_no_source, check_only_embeds
from blockyard.model._embedding import Embeds
from blockyard.model._record import Record, note


class Bare(Embeds):
    """An embedder and a head: forward(inputs, None, record) -> (B, V) or (B, N, V)."""

    def __init__(self, ctx: Context, parts: Parts, *, dropout: Rate) -> None:
        super().__init__(ctx, parts)
        self.dropout = nn.Dropout(dropout)
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_only_embeds(ctx, self.position, "model=bare mixes no tokens")

    @property
    def mixers(self) -> list[TokenMixer]:
        """Empty: the model has no blocks."""
        return []

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions for a batch."""
        inputs = Inputs.of(inputs)
        check_no_source(self, inputs)
        check_no_cache(self, cache)
        x, seq = self.embed_tokens(inputs, record)  # (B, N, D)
        note(record, "seq", seq)
        prediction = self.head(self.dropout(x), seq)
        note(record, "prediction", prediction)
        return prediction
