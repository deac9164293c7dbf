"""Connectionist temporal classification: labels in order, without their places in the source.

Source: Graves et al. 2006, Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent
    Neural Networks
Reference: torch.nn.functional.ctc_loss; transformers Wav2Vec2ForCTC
Equation: -log sum over alignments a of the labels, of prod_n softmax(prediction_n)[a_n], over the number of labels

    source      ~ ~ ~ ~ ~ ~ ~ ~     N tokens of the source; the model reads nothing else
    alignment   _ 5 5 _ 8 _ _ A     a label or a blank for each; 14 others say the same
    labels      5 8 A               `ops.ctc` has the rest

For some hundred steps a model writes only blanks: they are likelier than any label while it has learned nothing. The
metric `empty` is then 1, and the loss follows from the frequencies of labels, about 3 nats for letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Baseline, Baselines, Batch, DataSpec, Objective, Split, Splits, TokenSpec, Transcripts
from blockyard.errors import UserError
from blockyard.ops import ctc

if TYPE_CHECKING:
    import torchmetrics


class Labels(NamedTuple):
    """The target of a batch.

    labels: (B, S) int64, from the left, `Batch.ignore` behind them
    tokens: (B,) int64, the number of source tokens of each sample
    """

    labels: Tensor
    tokens: Tensor


class CTC(Objective):
    """Finds a text in a source, such as speech in sound. The blank is the id of the token that starts a text.

    A sample with too few source tokens for any alignment of its labels does not count.
    """

    takes = "token"
    modality = "text"
    needs_source: ClassVar[bool] = True
    reads: ClassVar[Literal["row", "source"]] = "source"

    def __init__(self) -> None:
        self._blank: int | None = None
        self._source: TokenSpec | None = None

    def tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens unchanged, and keep the id of the blank."""
        self._blank = tokens.start
        return tokens

    def source_tokens(self, tokens: TokenSpec) -> TokenSpec:
        """Return the tokens of the source unchanged, and keep them."""
        self._source = tokens
        return tokens

    @property
    def blank(self) -> int:
        """The id of the blank."""
        assert self._blank is not None, "tokens() comes before prepare()"
        return self._blank

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output per label and one for a blank. Raises ValueError unless start and end are the last ids."""
        last = None if tokens.vocabulary is None else (tokens.vocabulary - 2, tokens.vocabulary - 1)
        if tokens.start is None or (tokens.start, tokens.end) != last:
            raise ValueError("objective=ctc needs token ids of which the last two are start and end")
        return tokens.start + 1

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch with texts (B, N + 1) as labels, without start and end, and the tokens of each source."""
        assert self._source is not None, "source_tokens() comes before prepare()"
        assert isinstance(batch.target, Tensor)
        lengths = batch.lengths
        if lengths is None:
            lengths = torch.full((len(batch),), batch.inputs.shape[1], device=batch.inputs.device)
        tokens = self._source.tokens_of(lengths)
        labels = to_the_left(batch.target, (batch.target >= 0) & (batch.target < self.blank))
        too_short = ~enough(labels, tokens)[:, None]  # (B, 1): no alignment, and a loss without bound
        return replace(batch, target=Labels(labels.masked_fill(too_short, Batch.ignore), tokens))

    def remarks(self, splits: Splits) -> Iterator[str]:
        """Yield the number of samples with too few source tokens for their labels. Raises UserError if all have."""
        assert self._source is not None, "source_tokens() comes before remarks()"
        for name, split in zip(splits._fields, splits, strict=True):
            if not isinstance(split, Transcripts):
                continue
            short = int((self._source.tokens_of(split.lengths) < split.least_tokens).sum())
            problem = f"{short} of {len(split)} {name} sources have fewer tokens than an alignment of their labels"
            if short == len(split):
                raise UserError(f"{problem}; use a source_tokenizer with more tokens a second")
            if short:
                yield f"{problem}, and do not count"

    def count(self, batch: Batch) -> int:
        """Return the number of labels."""
        assert isinstance(batch.target, tuple)
        return int((batch.target[0] != Batch.ignore).sum())

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the nats of all labels over their number. prediction: (B, N, V); target: `Labels`."""
        losses, counts = self.losses(prediction, target)
        return losses.sum() / counts.sum().clamp_min(1)

    def losses(self, prediction: Tensor, target: Any) -> tuple[Tensor, Tensor]:
        """Return nats and the number of labels of each sample, both (B,), zero for samples that do not count."""
        labels, tokens = target
        counts = (labels != Batch.ignore).sum(1)
        log_probs = prediction.float().log_softmax(2).transpose(0, 1)  # (N, B, V)
        # Ids and lengths are clamped for samples that do not count: torch checks them, and their losses are dropped.
        losses = F.ctc_loss(
            log_probs,
            labels.clamp_min(0),
            tokens.clamp(1, len(log_probs)),
            counts,
            blank=self.blank,
            reduction="none",
        )
        return torch.where(counts > 0, losses, torch.zeros_like(losses)), counts

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss, character and word error rates of the most likely alignment, and the share of empty texts."""
        from blockyard.objective._metrics import CharErrors, CTCLoss, Empty, WordErrors, unit

        blank = self._blank or 0
        decode = getattr(split, "decode", unit)
        return {
            "loss": CTCLoss(self.losses),
            "cer": CharErrors(blank, decode),
            "wer": WordErrors(blank, decode),
            "empty": Empty(blank, decode),
        }

    def best(self) -> tuple[str, str]:
        """Return the lowest character error rate as the best one."""
        return "cer", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the values of writing nothing: every character is missing."""
        return Baselines([Baseline("nothing", lambda: {"cer": 1.0, "wer": 1.0, "empty": 1.0})])

    def transcribe(self, prediction: Tensor, tokens: Tensor, beam: int | None = None) -> list[list[int]]:
        """Return the token ids that a model writes.

        prediction: (B, N, V)
        tokens: (B,), the number of tokens of each source
        beam: number of prefixes that a search keeps, with alignments added up; None takes the most likely alignment
        """
        if beam is None:
            return ctc.greedy(prediction, tokens, self.blank)
        log_probs = prediction.float().log_softmax(2)
        sources = zip(log_probs, tokens.tolist(), strict=True)
        return [ctc.prefix_beam(row[:count], self.blank, beam)[0][0] for row, count in sources]


def to_the_left(ids: Tensor, kept: Tensor) -> Tensor:
    """Return the ids (B, N) that are `kept` (B, N), in order from the left, `Batch.ignore` behind them."""
    order = (~kept).int().argsort(dim=1, stable=True)
    return ids.masked_fill(~kept, Batch.ignore).gather(1, order)[:, : max(int(kept.sum(1).max()), 1)]


def enough(labels: Tensor, tokens: Tensor) -> Tensor:
    """Return whether sources of `tokens` (B,) tokens have an alignment of the labels (B, S): (B,) bool."""
    # Two equal labels in a row need a blank between them.
    repeats = ((labels[:, 1:] == labels[:, :-1]) & (labels[:, 1:] != Batch.ignore)).sum(1)
    return tokens >= (labels != Batch.ignore).sum(1) + repeats
