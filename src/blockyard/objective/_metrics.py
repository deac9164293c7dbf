"""Means over a whole split: sums and counts are kept, so uneven batches and processes weigh right.

Imports torchmetrics, which takes seconds: import this file where metrics are made, not before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassJaccardIndex

from blockyard.contracts import Batch


class _Mean(Metric):
    """Sum over count; both are added up over batches and processes."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def compute(self) -> Tensor:
        """The mean so far."""
        return (self.total / self.count).float()


class MeanCrossEntropy(_Mean):
    """Cross entropy in nats over all targets that are not `Batch.ignore`."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        logits, wanted = prediction.flatten(0, -2).float(), target.flatten()
        self.total += F.cross_entropy(logits, wanted, ignore_index=Batch.ignore, reduction="sum").double()
        self.count += (wanted != Batch.ignore).sum()


class Accuracy(_Mean):
    """Share of the targets that are not `Batch.ignore` whose logit is the largest."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        self.total += (prediction.argmax(-1) == target).sum()
        self.count += (target != Batch.ignore).sum()


class Exact(_Mean):
    """Share of the rows that are asked anything whose every answer is right."""

    higher_is_better = True

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, N, V) logits; target: (B, N) int64."""
        asked = target != Batch.ignore
        rows = asked.any(1)
        self.total += (((prediction.argmax(-1) == target) | ~asked).all(1) & rows).sum()
        self.count += rows.sum()


class MeanIoU(MulticlassJaccardIndex):
    """Intersection over union of each class, averaged over the classes; targets of `Batch.ignore` are left out."""

    def __init__(self, classes: int) -> None:
        super().__init__(num_classes=classes, average="macro", ignore_index=Batch.ignore)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (..., V) logits; target: (...) int64."""
        super().update(prediction.argmax(-1), target)


class _Derived(Metric):
    """A figure that follows from a mean cross entropy: shares its sums, so that nothing is added twice.

    The source is fed by whoever holds it; feeding this one does nothing.
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, source: MeanCrossEntropy) -> None:
        super().__init__()
        self.source = source

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Nothing: `source` has its own turn."""


class Perplexity(_Derived):
    """exp of the mean cross entropy."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """At least 1; 1 is certainty."""
        return self.source.compute().exp()


class BitsPerByte(_Derived):
    """Cross entropy per byte of the text, in bits: comparable between tokenizers."""

    higher_is_better = False

    def __init__(self, source: MeanCrossEntropy, bytes_per_token: float) -> None:
        super().__init__(source)
        self.bytes_per_token = bytes_per_token

    def compute(self) -> Tensor:
        """Nats per token, over bytes per token, over the nats of a bit."""
        return self.source.compute() / (self.bytes_per_token * math.log(2))
