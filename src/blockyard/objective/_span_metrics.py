"""Metrics of spans of words, such as names, from predictions (B, N, V) as logits and targets (B, N) of tags.

Source: Tjong Kim Sang and Buchholz 2000, Introduction to the CoNLL-2000 Shared Task: Chunking (cs/0008022), and its
    script conlleval: a span is right if its first word, its last word and its type are
Reference: seqeval.metrics.classification_report in its default mode

    tag      B-PER  I-PER  O   I-LOC  I-LOC  B-LOC
    span     [    PER    ]     [    LOC    ] [ LOC ]

If tags are not of spans, each word is a span of its own: F1 over all of them is the accuracy.

Importing torchmetrics takes seconds, so objectives import this file inside `metrics`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from blockyard.contracts import Batch
from blockyard.objective._tags import Tags, span_ends

Score = Literal["precision", "recall", "f1"]


class SpanCounts(Metric):
    """The number of spans of each type that are right, predicted, and in the targets: (3, T)."""

    is_differentiable = False
    full_state_update = False
    counts: Tensor
    kinds: Tensor
    marks: Tensor

    def __init__(self, tags: Tags) -> None:
        super().__init__()
        self.types = len(tags.types)
        self.register_buffer("kinds", torch.tensor(tags.kinds, dtype=torch.int64), persistent=False)  # (V,)
        self.register_buffer("marks", torch.tensor(tags.marks, dtype=torch.int64), persistent=False)  # (V,)
        self.add_state("counts", torch.zeros(3, self.types, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the spans of a batch. Tokens without a target are no words."""
        counted = target != Batch.ignore
        # Further tokens of a word have no target and would end its span, so words are moved together.
        order = (~counted).to(torch.int8).sort(dim=1, stable=True).indices  # words first, in their order
        counted = counted.gather(1, order)
        there, end_there = self._spans(target.gather(1, order), counted)
        written, end_written = self._spans(prediction.argmax(-1).gather(1, order), counted)
        right = there.where((there == written) & (end_there == end_written), -1)
        self.counts += torch.stack(
            [torch.bincount(types[types >= 0], minlength=self.types) for types in (right, written, there)]
        )

    def _spans(self, tags: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        tags = tags.clamp_min(0)
        return span_ends(self.kinds[tags].masked_fill(~counted, -1), self.marks[tags])

    def compute(self) -> Tensor:
        """The counts."""
        return self.counts


class SpanScore(Metric):
    """Precision, recall or F1 of spans: of one type, of all spans together, or the mean over types.

    leads: True in one of the metrics that share `source`; this one updates it
    of: the number of a type; "all" is all spans, "types" the mean over types that are in the targets or predicted
    """

    is_differentiable = False
    full_state_update = False
    higher_is_better = True

    def __init__(self, source: SpanCounts, score: Score, of: int | Literal["all", "types"], *, leads: bool) -> None:
        super().__init__()
        self.source = source
        self.score = score
        self.of = of
        self.leads = leads

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the spans of a batch, once for all metrics that share them."""
        if self.leads:
            self.source.update(prediction, target)

    def compute(self) -> Tensor:
        """A share: 0 if there are spans and none is right, NaN if there are neither targets nor predictions."""
        self.source.sync_on_compute = self.sync_on_compute
        right, written, there = self.source.compute().double().unbind(0)  # (T,)
        if self.of == "all":
            right, written, there = (count.sum(0, keepdim=True) for count in (right, written, there))
        elif isinstance(self.of, int):
            right, written, there = (count[self.of : self.of + 1] for count in (right, written, there))
        total = {"precision": written, "recall": there, "f1": (written + there) / 2}[self.score]
        scores = (right / total.clamp_min(0.5)).masked_fill(written + there == 0, torch.nan)
        return scores.nanmean().float()


def span_metrics(tags: Tags) -> dict[str, Metric]:
    """Return precision, recall and F1 of all spans, the mean F1 over types, and the scores of each type: `f1@PER`."""
    source = SpanCounts(tags)
    scores: tuple[Score, ...] = ("precision", "recall", "f1")
    metrics: dict[str, Metric] = {
        score: SpanScore(source, score, "all", leads=number == 0) for number, score in enumerate(scores)
    }
    metrics["macro_f1"] = SpanScore(source, "f1", "types", leads=False)
    if tags.spans:
        for number, name in enumerate(tags.types):
            for score in scores:
                metrics[f"{score}@{name}"] = SpanScore(source, score, number, leads=False)
    return metrics
