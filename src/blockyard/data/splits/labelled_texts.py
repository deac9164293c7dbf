"""Shared parts of texts with a class each: a split of encoded texts, and simple models of the same task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch, SimpleModel, TextTokenizer
from blockyard.data.splits.columns import gather
from blockyard.data.splits.simple_models import MOST_SAMPLES, MOST_TOKENS, majority_model, tf_idf


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of a split with a class each.

    stream: (T,) int32 token ids of all documents; start, lengths: (n,) int64, the tokens of each text in it
    target: (n,) int64 classes; slice: (n,) int64 index into `DataSpec.slices`, or None without slices
    slack: (n,) int64, how far a window may be moved to the right within its document; None where texts are whole
    separator: the token id between the two texts of a pair, which no tokenizer decodes; None for single texts
    """

    stream: Tensor
    start: Tensor
    lengths: Tensor
    target: Tensor
    slice: Tensor | None = None
    slack: Tensor | None = None
    separator: int | None = None

    def select(self, indices: Tensor) -> LabelledTexts:
        """Return the texts `indices` (m,); the stream stays as it is."""
        return LabelledTexts(
            self.stream,
            self.start[indices],
            self.lengths[indices],
            self.target[indices],
            None if self.slice is None else self.slice[indices],
            None if self.slack is None else self.slack[indices],
            self.separator,
        )


class LabelledSplit:
    """One split. A key moves all windows by one offset that is drawn from it; whole texts stay as they are.

    variable: texts have different lengths, and batches are padded on the right with token id 0
    class_counts: (V,) int64, the texts of each class in the training split, on which metrics of classes depend
    """

    def __init__(
        self, texts: LabelledTexts, tokenizer: TextTokenizer, train: LabelledTexts, classes: int, *, variable: bool
    ) -> None:
        self.texts, self.tokenizer, self.train, self.variable = texts, tokenizer, train, variable
        self.class_counts = train.target.bincount(minlength=classes)

    def __len__(self) -> int:
        return len(self.texts.target)

    @property
    def lengths(self) -> Tensor:
        """The tokens of each text, (n,)."""
        return self.texts.lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, longest), target (B,), lengths (B,) if they differ, and slice (B,) if there are slices."""
        texts = self.texts
        start, lengths = texts.start[order], texts.lengths[order]
        if texts.slack is not None and key is not None:
            start = start + texts.slack[order].clamp_max(key % int(lengths.max()))
        return Batch(
            gather(texts.stream, start, lengths),
            texts.target[order],
            lengths=lengths if self.variable else None,
            slice=None if texts.slice is None else texts.slice[order],
        )

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the model of the most frequent class, and a linear model of the words."""
        yield majority_model(self.class_counts)
        tokens = max(int(self.train.lengths.double().mean()), 1)  # of a text
        yield tf_idf(
            lambda order: decoded(self.train.select(order), self.tokenizer),
            self.train.target,
            lambda order: decoded(self.texts.select(order), self.tokenizer),
            len(self.class_counts),
            min(MOST_SAMPLES, MOST_TOKENS // tokens),
        )


def decoded(texts: LabelledTexts, tokenizer: TextTokenizer) -> list[str]:
    """Return each text as a model sees it: cut to the context, with the tokenizer's unknown token."""
    result = []
    for start, length in zip(texts.start.tolist(), texts.lengths.tolist(), strict=True):
        ids = texts.stream[start : start + length].tolist()
        if texts.separator is None:
            result.append(tokenizer.decode(ids))
            continue
        middle = ids.index(texts.separator)  # which no tokenizer decodes
        result.append(f"{tokenizer.decode(ids[:middle])} {tokenizer.decode(ids[middle + 1 :])}")
    return result


def encoded(texts: Sequence[str], tokenizer: TextTokenizer) -> tuple[Tensor, Tensor]:
    """Return the token ids of all texts in one stream (T,) int32, and how many each has (n,) int64."""
    token_ids = [tokenizer.encode(text) for text in texts]
    lengths = torch.tensor([len(ids) for ids in token_ids], dtype=torch.int64)
    return torch.tensor([token_id for ids in token_ids for token_id in ids], dtype=torch.int32), lengths
