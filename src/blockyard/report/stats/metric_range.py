"""The range of a metric, in which the intervals of its mean stay.

Student's interval of a few accuracies can end below 0 or above 1, where no mean can be. The part beyond the range is
cut off: the mean lies in what is left exactly when it lies in the whole interval, so that the level stays at 95 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from blockyard.runs.metric_name import MetricName

Range = tuple[float, float]

SHARE = (0.0, 1.0)
_SHARES = re.compile(
    r"accuracy|exact|exact_match|top_?\d+|(f1|fbeta)(_score)?|precision|recall|specificity|auroc|average_precision|"
    r"jaccard_index|mean_iou|(expected_)?calibration_error|empty"
)


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


def clipped(interval: Range | None, limits: Range | None) -> Range | None:
    """Return the part of an interval within the limits; without limits the interval."""
    if interval is None or limits is None:
        return interval
    low, high = limits
    return (min(max(interval[0], low), high), max(min(interval[1], high), low))
