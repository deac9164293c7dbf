"""Metrics over a whole split, from sums and counts, so that uneven batches and processes have the right weight.

The means are not torchmetrics' MeanMetric: it sums in float32 and drops NaN, which would hide a diverged model, at the
cost of a GPU synchronisation per update; with that check disabled it ignores the weights. Its MulticlassExactMatch
counts a sequence without targets as correct.

For several labels a sample, predictions (B, V) are logits and targets (B, V) are 0, 1 or NaN. Error rates of
transcripts are of the greedy text of a CTC model; torchmetrics.text.CharErrorRate and WordErrorRate have the same sums.

Importing torchmetrics takes seconds, so objectives import this file inside `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import BinaryAUROC, MulticlassF1Score, MulticlassJaccardIndex, MultilabelF1Score

from blockyard.contracts import Batch
from blockyard.ops import ctc

Decode = Callable[[list[int]], str]


class _Mean(Metric):
    """A sum over a count; both are accumulated over batches and processes."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """The mean over all updates."""
        return (self.total / self.count).float()


class MeanCrossEntropy(_Mean):
    """Mean cross entropy in nats over all targets that are not `Batch.ignore`."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        logits, target = prediction.flatten(0, -2).float(), target.flatten()
        self.total += F.cross_entropy(logits, target, ignore_index=Batch.ignore, reduction="sum").double()
        self.count += (target != Batch.ignore).sum()


class MeanNats(_Mean):
    """Minus the log likelihood in nats over the number of target values that are not NaN.

    nats: function of (prediction, target) that returns the nats of each token, zero for a target of NaN
    """

    higher_is_better = False

    def __init__(self, nats: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.nats = nats

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: as the objective takes it; target: float, with NaN."""
        self.total += self.nats(prediction, target).double().sum()
        self.count += Batch.counted(target).sum()


class MeanBound(MeanNats):
    """A bound from a sum over some targets: nats over the number of all targets, of the first target tensor."""

    def update(self, prediction: Tensor, target: Any) -> None:
        """prediction: as the objective takes it; target: a named tuple, its first tensor with `Batch.ignore`."""
        counted = Batch.counted(target[0])
        self.total += (self.nats(prediction, target) * counted).double().sum()
        self.count += counted.sum()


def _hits(prediction: Tensor, target: Tensor) -> Tensor:
    """Return 1 if the target has the largest logit, else 0, and NaN if its logits have a NaN: (...) float64.

    prediction: (..., V) logits; target: (...) int64
    """
    # `argmax` alone would return the index of the NaN, as if it were a prediction.
    largest, index = prediction.max(-1)
    return (index == target).double().masked_fill(largest.isnan() & (target != Batch.ignore), torch.nan)


class Accuracy(_Mean):
    """Share of targets with the largest logit, of all targets that are not `Batch.ignore`."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        self.total += _hits(prediction, target).sum()
        self.count += (target != Batch.ignore).sum()


class ExactMatch(_Mean):
    """Share of sequences with every target correct, of all sequences with any target."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, N, V) logits; target: (B, N) int64."""
        ignored = target == Batch.ignore
        counted = ~ignored.all(1)  # (B,)
        self.total += (_hits(prediction, target).masked_fill(ignored, 1.0).prod(1) * counted).sum()
        self.count += counted.sum()


def _any_counted(*states: Any) -> bool:
    """Return whether any decision was counted, by the states of torchmetrics."""
    return any(bool(torch.as_tensor(state).any()) for state in states)


class MeanIoU(MulticlassJaccardIndex):
    """Intersection over union of each class, averaged over classes, without targets of `Batch.ignore`."""

    def __init__(self, classes: int) -> None:
        super().__init__(num_classes=classes, average="macro", ignore_index=Batch.ignore)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        super().update(prediction.argmax(-1), target)


class MacroF1(MulticlassF1Score):
    """The harmonic mean of precision and recall of each class, averaged over classes, without `Batch.ignore`."""

    def __init__(self, classes: int) -> None:
        super().__init__(num_classes=classes, average="macro", ignore_index=Batch.ignore, validate_args=False)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, V) logits; target: (B,) int64."""
        super().update(prediction.argmax(-1), target)

    def compute(self) -> Tensor:
        """The mean over classes; NaN if there were no samples."""
        if not _any_counted(self.tp, self.fp, self.fn):  # torchmetrics would return zero
            return torch.tensor(torch.nan)
        return super().compute()


class AUROC(BinaryAUROC):
    """The probability that a sample of class 1 has a higher score than one of class 0; NaN without samples of one."""

    higher_is_better = True

    def __init__(self) -> None:
        super().__init__(ignore_index=Batch.ignore, validate_args=False)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, 2) logits; target: (B,) int64."""
        # Only the order counts. The sigmoid of two confident scores is 1 for both, while their arc tangents differ.
        difference = prediction[:, 1].double() - prediction[:, 0].double()
        super().update(difference.atan() / math.pi + 0.5, target)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The area under the curve, in [0, 1]; NaN if a score is NaN."""
        target, scores = _joined(self.target), _joined(self.preds)
        if not 0 < int(target.sum()) < len(target) or bool(scores.isnan().any()):
            return torch.tensor(torch.nan)
        return super().compute()


def _joined(state: Tensor | list[Tensor]) -> Tensor:
    """Return the batches of a state as one tensor."""
    parts = [state] if isinstance(state, Tensor) else list(state)  # after a reduction over processes it is a tensor
    if not parts:
        return torch.empty(0)
    return torch.cat([part.flatten() for part in parts])


class _Derived(Metric):
    """A function of a mean cross entropy. It shares the sums of its source: updating this metric does nothing."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, source: MeanCrossEntropy | MeanNats) -> None:
        super().__init__()
        self.source = source

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Do nothing: `source` is updated on its own."""


class Perplexity(_Derived):
    """The exponential of the mean cross entropy."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The perplexity, at least 1."""
        return self.source.compute().exp()


class Bits(_Derived):
    """The mean cross entropy in bits."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Nats over nats per bit."""
        return self.source.compute() / math.log(2)


class Given(Metric):
    """A value of the split that does not depend on predictions."""

    is_differentiable = False
    full_state_update = False
    higher_is_better = False

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Do nothing."""

    def compute(self) -> Tensor:
        """The value."""
        return torch.tensor(self.value)


class BitsPerByte(_Derived):
    """Cross entropy in bits per byte of the text, comparable between tokenizers."""

    higher_is_better = False

    def __init__(self, source: MeanCrossEntropy | MeanNats, bytes_per_token: float) -> None:
        super().__init__(source)
        self.bytes_per_token = bytes_per_token

    def compute(self) -> Tensor:
        """Nats per token over bytes per token and nats per bit."""
        return self.source.compute() / (self.bytes_per_token * math.log(2))


class MeanBinaryCrossEntropy(_Mean):
    """Mean binary cross entropy in nats over the known labels."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add the cross entropies of a batch."""
        counted = Batch.counted(target)
        nats = F.binary_cross_entropy_with_logits(prediction.double(), target.nan_to_num().double(), reduction="none")
        self.total += (nats * counted).sum()
        self.count += counted.sum()


class LabelAccuracy(_Mean):
    """The share of known labels that are right."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the right labels of a batch."""
        counted = Batch.counted(target)
        self.total += (((prediction >= 0) == target.nan_to_num().bool()) & counted).sum()
        self.count += counted.sum()


class AllLabels(_Mean):
    """The share of samples with all known labels right."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the right samples of a batch, of all samples with a known label."""
        counted = Batch.counted(target)
        right = ((prediction >= 0) == target.nan_to_num().bool()) | ~counted
        self.total += (right.all(1) & counted.any(1)).sum()
        self.count += counted.any(1).sum()


class LabelF1(MultilabelF1Score):
    """F1 of the labels: the mean over them (macro), or of all decisions together (micro)."""

    def __init__(self, labels: int, average: Literal["macro", "micro"]) -> None:
        super().__init__(num_labels=max(labels, 2), average=average, ignore_index=Batch.ignore)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the decisions of a batch."""
        target = target.nan_to_num(float(Batch.ignore)).long()
        super().update((prediction >= 0).long(), target)

    def compute(self) -> Tensor:
        """The F1 score; NaN if there were no labels."""
        if not _any_counted(self.tp, self.fp, self.fn, self.tn):  # torchmetrics would return zero
            return torch.tensor(torch.nan)
        return super().compute()


class CTCLoss(_Mean):
    """Mean negative log-likelihood of the labels in nats a label."""

    higher_is_better = False

    def __init__(self, losses: Callable[[Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.losses = losses

    def update(self, prediction: Tensor, target: tuple[Tensor, Tensor]) -> None:
        """prediction: (B, N, V); target: labels (B, S) and tokens (B,)."""
        losses, counts = self.losses(prediction, target)
        self.total += losses.double().sum()
        self.count += counts.sum()


class _Transcripts(_Mean):
    """A score of the greedy text of each sample against its labels. Subclasses implement `score`."""

    higher_is_better = False

    def __init__(self, blank: int, decode: Decode) -> None:
        super().__init__()
        self.blank = blank
        self.decode = decode

    def update(self, prediction: Tensor, target: tuple[Tensor, Tensor]) -> None:
        """prediction: (B, N, V); target: labels (B, S) and tokens (B,)."""
        labels, tokens = target
        for written, row in zip(ctc.greedy(prediction, tokens, self.blank), labels.tolist(), strict=True):
            reference = [label for label in row if label != Batch.ignore]
            if reference:  # a sample without labels does not count
                wrong, count = self.score(written, reference)
                self.total += wrong
                self.count += count

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """Return the number of errors, and the number of possible ones."""
        raise AssertionError("abstract")


class CharErrors(_Transcripts):
    """Inserted, deleted and replaced characters over the characters of the true texts; many insertions exceed 1."""

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """Return the edits between the texts, and the characters of the true one."""
        text = self.decode(written)
        reference = self.decode(labels)
        return Levenshtein.distance(reference, text), len(reference)


class WordErrors(_Transcripts):
    """Inserted, deleted and replaced words over the words of the true texts. Spaces separate words."""

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """Return the edits between the words, and the words of the true text."""
        text = self.decode(written).split()
        reference = self.decode(labels).split()
        return Levenshtein.distance(reference, text), len(reference)


class Empty(_Transcripts):
    """Share of samples with an empty text: all of them until a model has left the plateau of blanks."""

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """Return one error for an empty text, of one."""
        return int(not written), 1


def unit(token_ids: list[int]) -> str:
    """Return one character for each token id, for splits that have no text."""
    # From the block of Chinese characters on: no spaces among them, so that a text is one word.
    return "".join(map(chr, torch.tensor(token_ids, dtype=torch.int64).add(0x4E00).tolist()))
