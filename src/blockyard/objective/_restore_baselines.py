"""Predictions of hidden values that need no training, and their errors over a split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Batch, Split
from blockyard.data._order import take
from blockyard.objective._patches import cut, floats

if TYPE_CHECKING:
    import torchmetrics

    from blockyard.objective.restore import Restore

_BATCH = 512


def restorations(batch: Batch, objective: Restore, average: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Names and predictions (B, N, V) of the rules for a prepared batch. average: (N, V), of the split."""
    assert isinstance(batch.target, Tensor)
    yield "mean", torch.zeros_like(batch.target)
    if objective.normalise == "patch":
        return  # the mean of each hidden patch is taken out of its target
    yield "average", average.expand_as(batch.target)
    visible = cut(batch.inputs, objective.layout)  # (B, N, V)
    if batch.hidden is None:
        yield "input", visible
        return
    visible = visible.masked_fill(batch.hidden[..., None], float("nan"))
    yield "visible", visible.nanmean((1, 2), keepdim=True).nan_to_num().expand_as(batch.target)


def baselines(split: Split, objective: Restore) -> dict[str, dict[str, float]]:
    """The objective's metrics of every rule over `split`, with the patches and the noise of its evaluation."""
    metrics: dict[str, dict[str, torchmetrics.Metric]] = {}
    average = _average(split, objective)
    for order in torch.arange(len(split)).split(_BATCH):
        batch = objective.ready(take(split, order, None))
        for name, prediction in restorations(batch, objective, average):
            for metric in metrics.setdefault(name, dict(objective.metrics(split))).values():
                metric.update(prediction, batch.target)
    return {name: {key: float(metric.compute()) for key, metric in own.items()} for name, own in metrics.items()}


def _average(split: Split, objective: Restore) -> Tensor:
    """The mean of every value (N, V) over the samples of a split in which it is not missing."""
    total, count = torch.zeros(()), torch.zeros(())
    for order in torch.arange(len(split)).split(_BATCH):
        values = cut(floats(split.batch(order, None).inputs), objective.layout).double()  # (B, N, V)
        total, count = total + values.nansum(0), count + (~values.isnan()).sum(0)
    return (total / count.clamp_min(1)).float()
