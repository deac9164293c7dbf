"""The model of bare: an embedder and a head, with no blocks between them.

inputs --> embedder --(position.embed)--> head
"""

from __future__ import annotations

from torch import Tensor, nn

from blockyard.contracts import Context, Parts, Rate, TokenMixer
from blockyard.model._compatibility import check_only_embeds
from blockyard.model._example_batch import record_kernels
from blockyard.model._mask_token import hide, mask_token
from blockyard.model._positions import add_position, embedder_and_position, set_pairs
from blockyard.model._record import Record, note
from blockyard.ops import kernel
from blockyard.ops.full_precision import as_stream


class Bare(nn.Module):
    """An embedder and a head: forward(inputs, lengths) -> (B, V) or (B, N, V)."""

    def __init__(self, ctx: Context, parts: Parts, *, dropout: Rate) -> None:
        super().__init__()
        self.ctx = ctx
        self.embedder, self.position = embedder_and_position(ctx, parts)
        self.mask_token = mask_token(ctx, self.position.width)
        self.dropout = nn.Dropout(dropout)
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_only_embeds(ctx, self.position, "model=bare mixes no tokens")

    @property
    def mixers(self) -> list[TokenMixer]:
        """Empty: the model has no blocks."""
        return []

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        record: Record | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """Returns the predictions for a batch."""
        x, seq = self.embedder(inputs, lengths, segment, 0)  # (B, N, D - position.width)
        set_pairs(seq, pairs)
        x = hide(self.mask_token, as_stream(x), seq, hidden)
        note(record, "embedded", x)
        x = self.dropout(add_position(self.ctx, self.position, x, seq))  # (B, N, D)
        note(record, "placed", x)
        note(record, "seq", seq)
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def steps(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Record:
        """Returns every intermediate of a forward pass by name.

        embedded (B, N, D - position.width); placed (B, N, D); seq, the facts of the tokens; prediction.
        """
        record: Record = {}
        self.forward(inputs, lengths, segment, record, hidden, pairs)
        return record

    def kernels(
        self,
        inputs: Tensor | None = None,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> list[kernel.Record]:
        """Returns an empty list: nothing attends."""
        return record_kernels(self, inputs, lengths=lengths, hidden=hidden, pairs=pairs)
