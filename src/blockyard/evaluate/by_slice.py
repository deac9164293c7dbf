"""A metric over the samples of each slice of a split as well as over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Batch, Objective, Split
from blockyard.contracts.objective import ignored

if TYPE_CHECKING:
    import torchmetrics


class BySlice:
    """The metric that selects weights, once for each slice.

    A slice has a complete set of the objective's metrics, because some are functions of others. The targets of samples
    outside of a slice are ignored, so that each process updates every metric, with or without samples of the slice.
    """

    def __init__(self, objective: Objective, split: Split, names: Sequence[str], device: torch.device) -> None:
        self.metric = objective.best()[0]
        self.sets = {
            name: {key: metric.to(device) for key, metric in objective.metrics(split).items()} for name in names
        }

    @property
    def metrics(self) -> Iterator[torchmetrics.Metric]:
        """All metrics of all slices."""
        return (metric for metrics in self.sets.values() for metric in metrics.values())

    def update(self, prediction: Tensor, batch: Batch) -> None:
        """Count the predictions of a prepared batch. Raises ValueError for a batch without `slice`."""
        if not self.sets:
            return
        if batch.slice is None:
            raise ValueError(f"this data has the slices {', '.join(self.sets)} and a batch without Batch.slice")
        assert batch.target is not None
        for number, metrics in enumerate(self.sets.values()):
            target = ignored(batch.target, batch.slice != number)
            for metric in metrics.values():
                metric.update(prediction, target)

    def compute(self) -> dict[str, float]:
        """The metric of each slice that has a sample: "accuracy@NAME" -> value."""
        values = {f"{self.metric}@{name}": float(metrics[self.metric].compute()) for name, metrics in self.sets.items()}
        return {name: value for name, value in values.items() if not math.isnan(value)}
