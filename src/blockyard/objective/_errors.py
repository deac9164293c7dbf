"""Errors of real-valued predictions over a whole split, without targets that are NaN."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from blockyard.contracts import Batch, Objective, Positive
from blockyard.objective._metrics import _Mean

Kind: TypeAlias = Literal["mse", "mae", "huber"]


class _Sized(_Mean):
    """A mean of errors in the units of the data.

    size: (V,), the standard deviation of each value; None is 1
    """

    higher_is_better = False

    def __init__(self, size: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("size", None if size is None else size.double(), persistent=False)
        self.size: Tensor | None

    def errors(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return errors (B, V) in the units of the data, and the number of errors that count."""
        error, count = _errors(prediction, target)
        if self.size is not None:
            error = error * self.size
        return error, count


class MeanSquared(_Sized):
    """Mean squared error over all targets that count."""

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, ...); target: as many values, NaN where there is none."""
        error, count = self.errors(prediction, target)
        self.total += error.square().sum()
        self.count += count


class RootMeanSquared(MeanSquared):
    """The root of the mean squared error over all targets that count."""

    def compute(self) -> Tensor:
        """The root of the mean over all updates."""
        return super().compute().sqrt()


class MeanAbsolute(_Sized):
    """Mean absolute error over all targets that count."""

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, ...); target: as many values, NaN where there is none."""
        error, count = self.errors(prediction, target)
        self.total += error.abs().sum()
        self.count += count


class PeakSignalToNoise(MeanSquared):
    """Ten times the decimal logarithm of the squared range of the targets over the mean squared error.

    The range is over all targets of the split that count: standardized values have no range of their own.
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
        missing = ~Batch.counted(target)
        target = target.float()
        self.low = torch.minimum(self.low, target.masked_fill(missing, torch.inf).min())
        self.high = torch.maximum(self.high, target.masked_fill(missing, -torch.inf).max())

    def compute(self) -> Tensor:
        """The ratio in decibels; infinite for predictions without an error."""
        return 10 * torch.log10((self.high - self.low).square() / super().compute())


class Explained(Metric):
    """Share of the variance of the targets that is explained, R^2 = 1 - sum of squared errors / sum of squares.

    Squares are taken around the mean of the evaluated targets, value by value, and R^2 averaged over the values that
    vary.
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        # (4, V): targets that count, their sum, their squares, squared errors; V is known from the first update on.
        self.add_state("sums", torch.zeros(4, 1, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """prediction: (B, V); target: (B, ...) of V values, NaN where there is none."""
        error, _ = _errors(prediction, target)
        target = target.reshape(prediction.shape).double()
        counted = Batch.counted(target)
        counted_targets = target.masked_fill(~counted, 0.0)
        parts = [counted.double(), counted_targets, counted_targets.square(), error.square()]
        self.sums = self.sums + torch.stack([part.sum(0) for part in parts])

    def compute(self) -> Tensor:
        """One for predictions without error, zero for the mean of the targets."""
        count, total, squares, errors = self.sums
        around = squares - total.square() / count.clamp(min=1)  # (V,)
        varies = around > 1e-12 * squares.clamp(min=1e-300)  # the difference of a constant is rounding alone
        return torch.where(varies, 1 - errors / around, torch.nan).nanmean().float()


def _errors(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return errors in float64, zero for targets that do not count, and the number of targets that count."""
    # A prediction of NaN stays NaN, so that a diverged model has no finite metric.
    target = target.reshape(prediction.shape)
    counted = Batch.counted(target)
    error = prediction.double() - target.double().masked_fill(~counted, 0.0)
    return error.masked_fill(~counted, 0.0), counted.sum()


class ErrorObjective(Objective):
    """The error of one or more real values per sample.

    Options:
        loss: squared error, absolute error, or Huber's loss
        delta: the error from which Huber's loss is linear
    """

    takes = "sequence"
    target = "values"

    def __init__(self, *, loss: Kind = "mse", delta: Positive = 1.0) -> None:
        self.kind: Kind = loss
        self.delta = delta

    def loss(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the mean error over known values. prediction: (B, V); target: (B, ...) of V values with NaN."""
        target = target.flatten(1)
        counted = Batch.counted(target)
        error = prediction - target.masked_fill(~counted, 0.0)  # (B, V)
        if self.kind == "huber":
            values = F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=self.delta)
        else:
            values = error.square() if self.kind == "mse" else error.abs()
        return values.masked_fill(~counted, 0.0).sum() / counted.sum()
