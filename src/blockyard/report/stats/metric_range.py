"""The range of a metric, in which the intervals of its mean stay, and its best value, beyond which no arm can be.

Student's interval of a few accuracies can end below 0 or above 1, where no mean can be. The part beyond the range is
cut off: the mean lies in what is left exactly when it lies in the whole interval, so that the level stays at 95 %.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from blockyard.runs.metric_name import MetricName

Range = tuple[float, float]

SHARE = (0.0, 1.0)
_SHARES = re.compile(
    r"accuracy|exact|exact_match|top_?\d+|(f1|fbeta)(_score)?|precision|recall|specificity|auroc|average_precision|"
    r"jaccard_index|mean_iou|(expected_)?calibration_error|empty"
)
# Errors and losses, of which 0 is the best value; they have no largest one.
_ERRORS = re.compile(r"(\w+_)?(loss|mse|rmse|mae|cer|wer|insertions|outliers)|bits_per_\w+")
_GAINS = re.compile(r"macro_f1|\w+_asked")  # shares by another name, of which 1 is the best value


def metric_range(metric: str, values: Iterable[float]) -> Range | None:
    """Return (0, 1) for a metric that is a share, such as test/accuracy or val/f1_score@NAME; None for others.

    values: those of the runs; a metric of the same name with a value beyond the range has none
    """
    if metric.startswith("success("):  # of `sweep.spec.threshold`: 1 or 0
        return SHARE
    if not _SHARES.fullmatch(MetricName.parse(metric).name):
        return None
    if all(SHARE[0] <= value <= SHARE[1] for value in values):
        return SHARE
    return None


def metric_ranges(names: Sequence[str], runs: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the range of each of `names` that has one, from the metrics of `runs`, as the pages read it."""
    ranges = {}
    for name in names:
        limits = metric_range(name, [metrics[name] for metrics in runs if name in metrics])
        if limits is not None:
            ranges[name] = list(limits)
    return ranges


def best_value(metric: str, direction: str, values: Iterable[float]) -> float | None:
    """Return the best value that a metric can have: 1 for an accuracy, 0 for an error rate; None for others.

    direction: "max" where more is better, else "min"
    values: those of the runs; a metric of the same name with a better value has no such end
    """
    scores = list(values)
    limits = metric_range(metric, scores)
    if limits is not None:
        return limits[1] if direction == "max" else limits[0]
    name = MetricName.parse(metric).name
    if direction == "min" and _ERRORS.fullmatch(name):
        return 0.0 if all(score >= 0.0 for score in scores) else None
    if direction == "max" and _GAINS.fullmatch(name):
        return 1.0 if all(score <= 1.0 for score in scores) else None
    return None


def room(arm: str, scores: Sequence[float], direction: str, margin: float, end: float) -> str | None:
    """Return why no arm can be better than this one by the margin; None where there is room for the margin.

    arm: the arm that another one is to be better than; scores: its finite values, at least one
    end: the best value of the metric
    """
    mean = math.fsum(scores) / len(scores)
    gap = end - mean if direction == "max" else mean - end
    if gap >= margin:
        return None
    return f"no arm can be better by {margin:g}: {arm} is at {mean:.3g} of a metric that ends at {end:g}"


def clipped(interval: Range | None, limits: Range | None) -> Range | None:
    """Return the part of an interval within the limits; without limits the interval."""
    if interval is None or limits is None:
        return interval
    low, high = limits
    return (min(max(interval[0], low), high), max(min(interval[1], high), low))
