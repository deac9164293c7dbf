"""Errors of real-valued predictions over a whole split, without targets that are NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.objective._metrics import _Mean


class MeanSquared(_Mean):
    """Mean squared error over all targets that count."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, ...); target: as many values, NaN where there is none."""
        error, count = _errors(prediction, target)
        self.total += error.square().sum()
        self.count += count


class MeanAbsolute(_Mean):
    """Mean absolute error over all targets that count."""

    higher_is_better = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, ...); target: as many values, NaN where there is none."""
        error, count = _errors(prediction, target)
        self.total += error.abs().sum()
        self.count += count


class PeakSignalToNoise(MeanSquared):
    """Ten times the decimal logarithm of the squared range of the targets over the mean squared error.

    The range is that of the targets that count over the whole split, as standardized values have no other.
    """

    higher_is_better = True
    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("low", torch.tensor(torch.inf), dist_reduce_fx="min")
        self.add_state("high", torch.tensor(-torch.inf), dist_reduce_fx="max")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, ..., V); target: the same, NaN where there is none."""
        super().update(prediction, target)
        target, missing = target.float(), ~Batch.counted(target)
        self.low = torch.minimum(self.low, target.masked_fill(missing, torch.inf).min())
        self.high = torch.maximum(self.high, target.masked_fill(missing, -torch.inf).max())

    def compute(self) -> Tensor:
        """In decibels; infinite for predictions without an error."""
        return 10 * torch.log10((self.high - self.low).square() / super().compute())


def _errors(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Errors in float64, zero where a target does not count, and the number of those that do.

    A prediction that is NaN stays NaN, so that a model which diverged has no finite metric.
    """
    target = target.reshape(prediction.shape)
    counted = Batch.counted(target)
    error = prediction.double() - target.double().masked_fill(~counted, 0.0)
    return error.masked_fill(~counted, 0.0), counted.sum()
