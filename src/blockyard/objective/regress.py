"""Regression: the error of one or more real values per sample.

Source: Huber 1964, Robust Estimation of a Location Parameter, for the loss between squared and absolute error
Reference: torch.nn.functional.mse_loss, l1_loss, huber_loss; sklearn.metrics.r2_score
Equation: mean over known targets of (prediction - target)^2, in standard deviations of the training split

Beside the runs on a data set stand two baselines: `mean` predicts the mean of the training split; `linear` is a linear
model of images, series, vectors or graphs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Baselines, DataSpec, Split, Standardized, TokenSpec
from blockyard.objective._baselines import of_values
from blockyard.objective._errors import ErrorObjective, Explained, MeanAbsolute, RootMeanSquared

if TYPE_CHECKING:
    import torchmetrics


class Regress(ErrorObjective):
    """The loss is in standard deviations of the training split, metrics are in the units of the data.

    A target of NaN does not count, so that a sample may lack some of several targets.

    Options:

        delta: the error, in standard deviations, from which Huber's loss is linear
    """

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return one output for each value. Raises ValueError for data without real-valued targets."""
        if data.values is None:
            raise ValueError(
                f"objective=regress needs data with real-valued targets; this {data.modality} data has none"
            )
        return math.prod(data.values)

    def metrics(self, split: Split | None = None) -> dict[str, torchmetrics.Metric]:
        """Return the root of the mean squared error, mean absolute error, and the explained share of the variance."""
        size = None if split is None else _sizes(split)
        return {"rmse": RootMeanSquared(size), "mae": MeanAbsolute(size), "r2": Explained()}

    def best(self) -> tuple[str, str]:
        """Return the lowest root of the mean squared error as the best one."""
        return "rmse", "min"

    def baselines(self, split: Split, train: Split | None = None) -> Baselines:
        """Return the mean of the training split, and for images, series, vectors and graphs a linear model."""
        return of_values(split, train, self)


def _sizes(split: Split) -> Tensor | None:
    """Return the standard deviation of each of the V values in the units of the data (V,).

    None if it is unknown, or differs between samples, as for channels that are samples.
    """
    if not isinstance(split, Standardized):
        return None
    # Standard deviations may have fewer axes than a target, such as one for each channel of all steps.
    target = split.batch(torch.zeros(1, dtype=torch.long), None).target
    assert isinstance(target, Tensor)
    size = target.shape[1:]
    std_shape = split.std.shape[len(split.std.shape) - len(size) :]
    fits = all(width in (1, wanted) for width, wanted in zip(std_shape[::-1], size[::-1], strict=False))
    if not fits:
        return None
    return split.std.expand(size).flatten()
