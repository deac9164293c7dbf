"""Metrics of contrasts: those of a classifier whose classes are the candidates of each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from blockyard.contracts import Batch
from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

EQUAL = 1e-4  # of logits: products of equal vectors differ in their last bits
Logits = Callable[[Tensor, Any], Tensor]


class ContrastLoss(MeanCrossEntropy):
    """Mean cross entropy in nats over hidden tokens."""

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        self.logits = logits

    def update(self, prediction: Tensor, target: Any) -> None:
        """prediction: (B, N, F); target: `Contrast`."""
        super().update(self.logits(prediction, target), target.truth)


class ContrastAccuracy(Accuracy):
    """Share of the hidden tokens whose true frame is the most similar candidate."""

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        self.logits = logits

    def update(self, prediction: Tensor, target: Any) -> None:
        """prediction: (B, N, F); target: `Contrast`."""
        super().update(self.logits(prediction, target), target.truth)


class SharedAccuracy(Accuracy):
    """As `ContrastAccuracy`, where candidates that are equally similar share the point."""

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        self.logits = logits

    def update(self, prediction: Tensor, target: Any) -> None:
        """prediction: as `logits` takes it; target: has `truth`."""
        counts = target.truth != Batch.ignore
        logits = self.logits(prediction, target)[counts]  # (n, 1 + K), the true one first
        best = logits >= logits.amax(-1, keepdim=True) - EQUAL
        self.total += (best[:, 0] / best.sum(-1)).double().sum()
        self.count += counts.sum()


class Information(ContrastLoss):
    """A constant less the mean cross entropy, in nats."""

    higher_is_better = True

    def __init__(self, logits: Logits, constant: float) -> None:
        super().__init__(logits)
        self.constant = constant

    def compute(self) -> Tensor:
        """Over all updates."""
        return self.constant - super().compute()
