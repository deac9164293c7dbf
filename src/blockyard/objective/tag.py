"""Tagging: cross entropy of one class per word, read at one of the tokens that the word is cut into.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 5.3, the first piece of a word; Ramshaw and Marcus 1995,
    Text Chunking using Transformation-Based Learning (cmp-lg/9505040), for B-, I- and O
Reference: transformers BertForTokenClassification; seqeval.metrics.f1_score
Equation: mean over words of -log softmax(prediction_n)[tag], n the first token of the word, or its last one

    words    Ada            Lovelace       wrote
    tokens   A      da      Love   lace    wro   te
    target   B-PER  .       I-PER  .       O     .      piece=first
    target   .      B-PER   .      I-PER   .     O      piece=last, for a causal model, which has read the word by then

Beside the runs on a data set stand two baselines: `majority`, the most frequent tag of training, and `lookup`, the most
frequent tag of each word in training, for a new word the most frequent tag of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Baselines, Batch, DataSpec, Split, TokenSpec
from blockyard.contracts.inherited_options import with_options_of
from blockyard.data.splits.simple_models import majority
from blockyard.data.splits.tagged import TaggedSplit
from blockyard.objective._baselines import rules
from blockyard.objective._classes import ClassObjective
from blockyard.objective._tags import Tags

if TYPE_CHECKING:
    import torchmetrics


class Tag(ClassObjective):
    """Predicts the tag of each word.

    Options:
        piece: the token of a word that carries its tag, first or last; null is the last one in a causal model, and the
            first one in any other
    """

    takes = "token"
    target = "tags"
    modality = "text"

    @with_options_of(ClassObjective)
    def __init__(self, *, piece: Literal["first", "last"] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.piece = piece
        self.tags = Tags(())

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output for each tag. Raises ValueError for data without tags."""
        if data.target != "tags" or not data.classes:
            raise ValueError(f"objective=tag needs data with a tag for each word; this {data.modality} data has none")
        self.tags = Tags(data.class_names)
        return data.classes

    @property
    def reads_last(self) -> bool:
        """Return whether the tag of a word is at its last token."""
        if self.piece is None:
            return self.causal
        return self.piece == "last"

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Keep each word's tag at one of its tokens: target (B, N) of `TaggedSplit` -> (B, N) int64 below V."""
        assert isinstance(batch.target, Tensor)
        count = len(self.tags.names)
        target = batch.target
        if self.reads_last:
            follows = F.pad(target[:, 1:], (0, 1), value=Batch.ignore) >= count  # the word goes on
            target = target.where(~follows, Batch.ignore)
            target = torch.where(target >= count, target - count, target)  # a further token has its tag plus V
        return replace(batch, target=target.where(target < count, Batch.ignore))

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return loss and accuracy over words, and precision, recall and F1 of spans, together and for each type."""
        from blockyard.objective._metrics import Accuracy, MeanCrossEntropy
        from blockyard.objective._span_metrics import span_metrics

        return self.further({"loss": MeanCrossEntropy(), "accuracy": Accuracy(), **span_metrics(self.tags)})

    def best(self) -> tuple[str, str]:
        """Return the highest F1 as the best one: predicting O everywhere has a high accuracy."""
        return "f1", "max"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the most frequent tag of training, and the most frequent tag of each word."""
        if not isinstance(split, TaggedSplit) or not isinstance(train, TaggedSplit):
            return Baselines()

        @cache
        def table() -> dict[str, Tensor]:
            return _tags_by_word(train)

        def predict(batch: Batch) -> Iterator[tuple[str, Tensor]]:
            assert isinstance(batch.target, Tensor)
            assert batch.sample is not None
            logits = majority(train.tag_counts.clamp_min(1), 1).expand(*batch.target.shape, -1)
            yield "majority", logits
            scores = table()
            lookup = logits.clone()
            for row, sample in enumerate(batch.sample.tolist()):
                positions = (batch.target[row] != Batch.ignore).nonzero()[:, 0].tolist()
                for position, form in zip(positions, split.read_forms(sample), strict=True):
                    lookup[row, position] = scores.get(form, logits[row, position])
            yield "lookup", lookup

        return Baselines(rules(split, self, ["majority", "lookup"], predict))


def _tags_by_word(train: TaggedSplit) -> dict[str, Tensor]:
    """Return the log share of each tag of a word in training (V,). Ties go to the more frequent tag."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in range(len(train)):
        for form, tag in zip(train.read_forms(sample), train.read_tags(sample), strict=True):
            counts[form][tag] += 1
    shares = train.tag_counts.double() / train.tag_counts.sum()
    table = {}
    for form, tags in counts.items():
        count = torch.tensor([tags[name] for name in train.names]).double()  # (V,)
        # Shares below one decide between equal counts, and no tag has a logarithm of zero.
        table[form] = (count + shares + 1e-6).log().float()
    return table
