"""The metrics of the runs: which one is compared, and whether more or less of it is better.

The direction is the one that the run's objective recorded; for runs without a record, the metric's name decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from blockyard.errors import UserError, fold
from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.run_record import LoadedRun
from blockyard.runs.costs import COSTS
from blockyard.runs.last_evaluations import evaluations
from blockyard.runs.metric_name import MetricName

MORE = ("accuracy", "acc", "auc", "f1", "precision", "recall", "bleu", "psnr", "ssim", "iou", "r2", "top1", "top5")
LESS = ("loss", "perplexity", "bits_per_byte", "bits_per_dim", "error", "mse", "mae", "rmse", "nll", "fid")


def direction_by_name(metric: str) -> str | None:
    """Return "max" or "min" where the name of a metric or cost tells, else None."""
    if metric in COSTS:
        return COSTS[metric][0]
    name = str(MetricName.parse(metric).on(""))  # a metric of a variant has the direction that its run recorded
    if name in MORE:
        return "max"
    return "min" if name in LESS else None


def directions(records: Iterable[LoadedRun]) -> dict[str, str]:
    """Return the better direction of each metric of the runs, where it is known."""
    recorded: dict[str, str] = {}
    names: dict[str, None] = {}
    for record in records:
        by_metric = record.summary.get("directions")
        for name, direction in by_metric.items() if isinstance(by_metric, dict) else ():
            if direction in ("min", "max"):
                recorded.setdefault(str(name), direction)
        names |= dict.fromkeys(record.metrics)
    # Metrics of training stand in curves, and not among the results of a run.
    names |= dict.fromkeys(name for name in recorded if name.startswith("train/"))
    by_name = {name: recorded.get(name) or direction_by_name(name) for name in names}
    return {name: direction for name, direction in by_name.items() if direction}


def default_metric(records: Iterable[LoadedRun]) -> str | None:
    """Return the test twin of the metric that chose the checkpoints; without a record, a common test metric."""
    every = list(records)
    for record in every:
        monitor = record.summary.get("monitor")
        if isinstance(monitor, list | tuple) and monitor and f"test/{monitor[0]}" in record.metrics:
            return f"test/{monitor[0]}"
    tested = [name for record in every for name in record.metrics if name.startswith("test/")]
    # As the shipped objectives choose: a classifier by accuracy, a language model by its loss.
    is_text = any(name.endswith("perplexity") for name in tested)
    for name in ("test/loss", "test/accuracy") if is_text else ("test/accuracy", "test/loss"):
        if name in tested:
            return name
    return next(iter(tested), None)


def direction_of(metric: str, recorded: dict[str, str], requested: str | None = None) -> str:
    """Return the better direction of a metric. Raises UserError where it is unknown."""
    direction = requested or recorded.get(metric) or direction_by_name(metric)
    if direction not in ("min", "max"):
        raise UserError(f"it is unknown whether more or less of {metric} is better; pass --direction max or min")
    return direction


def metric_names(records: Iterable[LoadedRun]) -> list[str]:
    """Return the names of all metrics, metrics on test first."""
    names = dict.fromkeys(name for run in records for name in run.metrics)
    return sorted(names, key=lambda name: (not name.startswith("test/"), name))


def choose_metric(requested: str | None, data: ComparisonInput) -> str:
    """Return the metric to compare: the requested one, the sweep's own, else the default of the runs.

    A name without its prefix (`accuracy`) stands for the test metric, then for the validation metric. Raises
    UserError where no run has the metric.
    """
    names = metric_names(data.records)
    metric = requested or data.metric or default_metric(data.records)
    if metric is None:
        done = sum(run.done for run in data.records)
        if done or not data.question:
            unfinished = [run for run in data.records if run.reason] or [run for run in data.records if not run.done]
            reason = ""
            if unfinished:
                run = unfinished[0]
                reason = f"; {run.run} is {run.state}: {run.reason or 'by its status.json'}"
            raise UserError(f"none of the {len(data.records)} runs has a metric yet ({done} are done){reason}")
        return "test/loss"  # a sweep that has just begun: there is nothing to show yet
    costs = [key for key in COSTS if any(key in run.cost for run in data.records)]
    if not names or metric in (*names, *costs):
        return metric
    for prefixed in (f"test/{metric}", f"val/{metric}"):
        if prefixed in names:
            return prefixed
    raise UserError(f"metric={metric}: {_absence(metric, data.records, [*names, *costs])}")


def _absence(metric: str, records: Iterable[LoadedRun], names: Iterable[str]) -> str:
    """Return why no run has a metric. names: of the metrics and costs that the runs have"""
    name = MetricName.parse(metric)
    if not name.last:
        return f"no run has it; there are {', '.join(names)}"
    if name.split == "test":
        return f"test data is evaluated once, at the end of a run; {name.on('val')} is a mean of evaluations"
    most = max((len(evaluations(run.path, name)) for run in records if run.done), default=0)
    return f"no run has {name.last} evaluations of {name.on('val').logged()}, of which it is the mean; they have {most}"


def too_few_evaluations(metric: str, records: Iterable[LoadedRun]) -> list[str]:
    """Return a warning where finished runs have fewer evaluations than those that a metric is the mean of."""
    name = MetricName.parse(metric)
    if not name.last:
        return []
    short = [run.run for run in records if run.done and metric not in run.metrics]
    if not short:
        return []
    return [f"{len(short)} runs have fewer than {name.last} evaluations, and no {metric}: {fold(short)}"]
