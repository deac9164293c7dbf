"""Which way a metric is better: as the run's objective said; by its name for runs that did not say."""

from __future__ import annotations

from collections.abc import Iterable

from blockyard.errors import UserError
from blockyard.report.cost_table import KEYS
from blockyard.report.load.run_record import Record

MORE = ("accuracy", "acc", "auc", "f1", "precision", "recall", "bleu", "psnr", "ssim", "iou", "r2", "top1", "top5")
LESS = ("loss", "perplexity", "bits_per_byte", "bits_per_dim", "error", "mse", "mae", "rmse", "nll", "fid")


def by_name(metric: str) -> str | None:
    """What a metric's name says; None where it says nothing."""
    if metric in KEYS:
        return KEYS[metric][0]
    last = metric.rpartition("/")[2]
    return "max" if last in MORE else "min" if last in LESS else None


def directions(records: Iterable[Record]) -> dict[str, str]:
    """Each metric of the runs and its better direction, where it is known."""
    said: dict[str, str] = {}
    names: dict[str, None] = {}
    for record in records:
        ways = record.summary.get("directions")
        for name, way in ways.items() if isinstance(ways, dict) else ():
            if way in ("min", "max"):
                said.setdefault(str(name), way)
        names |= dict.fromkeys(record.metrics)
    found = {name: said.get(name) or by_name(name) for name in names}
    return {name: way for name, way in found.items() if way} | {
        name: way for name, way in said.items() if name.startswith("train/")
    }


def default_metric(records: Iterable[Record]) -> str | None:
    """The test twin of the metric that chose the runs' checkpoints; the first of the test metrics where none says."""
    every = list(records)
    for record in every:
        monitor = record.summary.get("monitor")
        if isinstance(monitor, list | tuple) and monitor and f"test/{monitor[0]}" in record.metrics:
            return f"test/{monitor[0]}"
    tested = [name for record in every for name in record.metrics if name.startswith("test/")]
    # As the shipped objectives choose: a classifier by accuracy, a language model by its loss.
    text = any(name.endswith("perplexity") for name in tested)
    for name in ("test/loss", "test/accuracy") if text else ("test/accuracy", "test/loss"):
        if name in tested:
            return name
    return next(iter(tested), None)


def direction_of(metric: str, known: dict[str, str], said: str | None = None) -> str:
    """The better direction of a metric. Raises UserError where nobody says it."""
    found = said or known.get(metric) or by_name(metric)
    if found not in ("min", "max"):
        raise UserError(f"whether more or less of {metric} is better is not known; say --direction max or min")
    return found
