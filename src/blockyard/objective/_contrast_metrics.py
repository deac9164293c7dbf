"""Metrics of `masked_contrast`: those of a classifier whose classes are the candidates of each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

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
