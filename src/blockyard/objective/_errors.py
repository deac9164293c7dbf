"""Errors of real-valued predictions over a whole split, without targets that are NaN."""

from __future__ import annotations

from torch import Tensor

from blockyard.contracts import Batch
from blockyard.objective._metrics import _Mean


class MeanSquared(_Mean):
    """Mean squared error over all targets that count."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, V); target: (B, ...) of V values, NaN where there is none."""
        error, count = _errors(prediction, target)
        self.total += error.square().sum()
        self.count += count


class MeanAbsolute(_Mean):
    """Mean absolute error over all targets that count."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, V); target: (B, ...) of V values, NaN where there is none."""
        error, count = _errors(prediction, target)
        self.total += error.abs().sum()
        self.count += count


def _errors(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Errors in float64, zero where a target does not count, and the number of those that do.

    A prediction that is NaN stays NaN, so that a model which diverged has no finite metric.
    """
    target = target.reshape(prediction.shape)
    counted = Batch.counted(target)
    error = prediction.double() - target.double().masked_fill(~counted, 0.0)
    return error.masked_fill(~counted, 0.0), counted.sum()
