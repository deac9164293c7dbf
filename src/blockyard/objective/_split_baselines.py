"""Metrics of the simple models that a split has of its own task."""

from __future__ import annotations

import torch

from blockyard.contracts import HasBaselines, Objective, Split


def of_split(split: Split, objective: Objective) -> dict[str, dict[str, float]]:
    """Returns the objective's metrics of every model of the split over all of it; none where it has none."""
    if not isinstance(split, HasBaselines):
        return {}
    target = objective.ready(split.batch(torch.arange(len(split)), None)).target
    result = {}
    for name, prediction in split.baselines():
        metrics = objective.metrics(split)
        for metric in metrics.values():
            metric.update(prediction, target)
        result[name] = {key: float(metric.compute()) for key, metric in metrics.items()}
    return result
