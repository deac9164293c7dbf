"""The terms of a comparison: the metric, the arms' rivals, and the rule that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockyard.report.load.costs import AXES
from blockyard.report.stats.intervals import Mean, mean_of
from blockyard.report.stats.resplit import split_mean
from blockyard.report.stats.verdict import Differ


@dataclass(frozen=True)
class ComparisonTerms:
    """The metric, the arms' rivals, and the rule that decides.

    direction: max or min; directions: of every metric that a run has recorded
    baseline: an arm; rivals: the arm that an arm is compared with, where that is not the baseline
    margin: the smallest difference that matters; expected: what the sweep expects of this metric
    cost_axis: a key of `load.costs.AXES`
    changes: whether to compute what each arm changes, and the tables of single test samples
    differ: compares sums of arms over test samples, or over splits; None over seeds
    split_ratio: test samples over training samples where each seed has a split of its own, else None
    """

    metric: str
    direction: str
    directions: Mapping[str, str]
    baseline: str | None
    rivals: Mapping[str, str]
    margin: float | None
    expected: str | None
    cost_axis: str
    changes: bool
    differ: Differ | None
    split_ratio: float | None

    @property
    def cost(self) -> str:
        """The key of the cost axis in a run's costs."""
        return AXES[self.cost_axis]

    def rival(self, arm: str) -> str | None:
        """Return the arm that an arm is compared with."""
        return self.rivals.get(arm, self.baseline)

    def mean(self, values: Sequence[float]) -> Mean:
        """Return the mean of a metric over seeds, with its interval."""
        if self.split_ratio is None:
            return mean_of(values)
        return split_mean(values, self.split_ratio)
