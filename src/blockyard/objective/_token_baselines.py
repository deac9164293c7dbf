"""The cross entropy of tokens of images under predictions that need no training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Objective, Split
from blockyard.data._order import take
from blockyard.objective._simple import BATCH

if TYPE_CHECKING:
    import torchmetrics


def baselines(split: Split, objective: Objective) -> dict[str, dict[str, float]]:
    """Returns the metrics of both rules over `split`, by their names; none for a split without `frequencies`.

    uniform: all token ids have one probability; independent: that of each index in the training split
    """
    frequencies: Tensor | None = getattr(split, "frequencies", None)  # (N, V)
    if frequencies is None:
        return {}
    surprise = -frequencies.double().log()  # nats
    total, count = 0.0, 0
    for order in torch.arange(len(split)).split(BATCH):
        target = objective.ready(take(split, order, None)).target
        assert isinstance(target, Tensor)
        target = target.flatten(1).floor().long()  # of levels with noise, the levels
        total += float(surprise.T.gather(0, target).sum())
        count += target.numel()
    nats = {"uniform": math.log(frequencies.shape[1]), "independent": total / count}
    return {name: _values(objective.metrics(split), value) for name, value in nats.items()}


def _values(metrics: dict[str, torchmetrics.Metric], nats: float) -> dict[str, float]:
    """The metrics of a mean cross entropy, in the form that `metrics` reports."""
    metrics["loss"].total, metrics["loss"].count = torch.tensor(nats).double(), torch.tensor(1)
    for metric in metrics.values():
        metric._update_count = 1  # torchmetrics warns of a metric without one
    values = {name: float(metric.compute()) for name, metric in metrics.items()}
    return {name: value for name, value in values.items() if not math.isnan(value)}  # those that need predictions
