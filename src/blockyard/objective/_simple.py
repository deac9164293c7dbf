"""Errors over a split of predictions that need no training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Batch, Objective, Split
from blockyard.data._order import take

if TYPE_CHECKING:
    import torchmetrics

BATCH = 512


def over_split(
    split: Split, objective: Objective, rules: Callable[[Batch], Iterable[tuple[str, Tensor]]]
) -> dict[str, dict[str, float]]:
    """Returns the objective's metrics of every rule over `split`, as evaluation prepares its batches.

    rules: from a prepared batch to names and predictions
    """
    metrics: dict[str, dict[str, torchmetrics.Metric]] = {}
    for order in torch.arange(len(split)).split(BATCH):
        batch = objective.ready(take(split, order, None))
        for name, prediction in rules(batch):
            for metric in metrics.setdefault(name, dict(objective.metrics(split))).values():
                metric.update(prediction, batch.target)
    return {name: {key: float(metric.compute()) for key, metric in own.items()} for name, own in metrics.items()}
