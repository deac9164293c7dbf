"""Metrics of several labels a sample, of predictions (B, V) as logits and targets (B, V) of 0 and 1, or NaN."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch
from blockyard.objective._metrics import _Mean
from blockyard.objective._torchmetrics import import_torchmetrics

import_torchmetrics()
from torchmetrics.classification import MultilabelF1Score  # noqa: E402


class MeanBinaryCrossEntropy(_Mean):
    """In nats, over the labels that are known."""

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
    """The share of samples whose known labels are all right."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the right samples of a batch, of those with a known label."""
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
