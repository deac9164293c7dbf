"""A metric at the first, second, ... part of a sequence as well as over all of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Mixed, Objective, Split, TokenSpec
from blockyard.contracts.objective import ignored

if TYPE_CHECKING:
    import torchmetrics


class ByPosition(Objective):
    """Wrap an objective and compute one of its metrics over each of `parts` parts of a sequence too.

    It evaluates and never trains. names: of the added metrics
    """

    def __init__(self, inner: Objective, metric: str, context: int, parts: int) -> None:
        self.inner, self.metric, self.context = inner, metric, context
        self.names = [f"{metric} {number}" for number in range(parts)]

    def outputs(self, data: DataSpec, tokens: TokenSpec) -> int:
        """Return V of the inner objective."""
        return self.inner.outputs(data, tokens)

    def prepare(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the batch of the inner objective."""
        return self.inner.prepare(batch, key)

    def ready(self, batch: Batch, key: int | None = None) -> Batch:
        """Return the prepared batch of the inner objective, which may read the source."""
        return self.inner.ready(batch, key)

    def count(self, batch: Batch) -> int:
        """Return the number of targets that the inner objective counts."""
        return self.inner.count(batch)

    def loss(self, prediction: Tensor, target: Any) -> Tensor:
        """Return the loss of the inner objective."""
        return self.inner.loss(prediction, target)

    def best(self) -> tuple[str, str]:
        """Return the metric by which the inner objective selects weights, and its direction."""
        return self.inner.best()

    def metrics(self, split: Split | None = None) -> dict[str, Any]:
        """Return the metrics of the inner objective, and one for each part: its tokens from part * context on."""
        metrics: dict[str, Any] = dict(self.inner.metrics(split))
        for number, name in enumerate(self.names):
            start = number * self.context
            # A metric of torchmetrics holds state, so that each part needs an instance of its own.
            metrics[name] = _Slice(self.inner.metrics(split)[self.metric], slice(start, start + self.context))
        return metrics


class _Slice:
    """A metric that sees the tokens of a slice only."""

    sync_on_compute = False

    def __init__(self, metric: Any, tokens: slice) -> None:
        self.metric, self.tokens = metric, tokens

    def to(self, device: torch.device) -> _Slice:
        self.metric = self.metric.to(device)
        return self

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.metric.update(prediction[:, self.tokens], target[:, self.tokens])

    def compute(self) -> Tensor:
        self.metric.sync_on_compute = False
        return self.metric.compute()


class BySlice:
    """The metric that selects weights, once for each slice of a split.

    A slice has a complete set of the objective's metrics, because some are functions of others. The targets of samples
    outside of a slice are ignored, so that each process updates every metric, with or without samples of the slice.

    Of a mixture, whose slices are data sets of their own, every metric is computed, with the facts of that data set.
    """

    def __init__(self, objective: Objective, split: Split | None, names: Sequence[str], device: torch.device) -> None:
        split_by_name = split.parts if isinstance(split, Mixed) else dict.fromkeys(names, split)
        self.sets: dict[str, dict[str, Any]] = {}
        self.reported: dict[str, list[str]] = {}
        for name in names:
            metrics = objective.metrics(split_by_name[name])
            self.sets[name] = {key: metric.to(device) for key, metric in metrics.items()}
            self.reported[name] = list(metrics) if isinstance(split, Mixed) else [objective.best()[0]]

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
        """Return the metric of each slice, or all of a part of a mixture: "accuracy@NAME" -> value."""
        values: dict[str, float] = {}
        for name, metrics in self.sets.items():
            for metric in self.reported[name]:
                value = float(metrics[metric].compute())
                if not math.isnan(value):  # NaN where the slice has no sample
                    values[f"{metric}@{name}"] = value
        return values
