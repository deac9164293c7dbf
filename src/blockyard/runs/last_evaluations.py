"""Means of the last evaluations of a run, such as `val/loss@last5`, from its metrics.csv.

One evaluation is as noisy as the last few steps before it; a mean over the last few varies less from seed to seed.

Source: Heineman et al. 2025, Signal and Noise (arXiv 2508.13144)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from blockyard.runs.metric_name import MetricName
from blockyard.runs.metrics import FILE, read_metrics


def last_means(run: Path, names: Iterable[str]) -> dict[str, float]:
    """Return the metrics among `names` that are means of last evaluations, as names on validation.

    One of more evaluations than the run has is missing.

    run: its folder
    """
    means: dict[str, float] = {}
    for name in names:
        metric = MetricName.parse(name)
        if not metric.last or metric.split == "test":
            continue
        values = evaluations(run, metric)[-metric.last :]
        if len(values) == metric.last:
            means[str(metric.on("val"))] = math.fsum(values) / len(values)
    return means


def evaluations(run: Path, metric: MetricName) -> list[float]:
    """Return the values of a metric on validation at each evaluation of a run, in order; empty where none is left."""
    name = str(metric.on("val").logged())
    try:
        return [row[name] for row in read_metrics(run / FILE) if name in row]
    except OSError:
        return []
