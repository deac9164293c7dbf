"""The signal-to-noise ratio of a metric in a sweep: the differences between arms over the noise of such a difference.

Arms and seeds that all of them have are a two-way layout with one value in each cell. Over all pairs of arms, in the
root mean square,

    signal  the difference of two means over the seeds    sqrt(2 MS_arms / S)
    noise   the standard deviation over the seeds of the paired differences    sqrt(2 MS_rest)

For two arms the ratio is the size of Cohen's d_z. Without any difference it is about 1 / sqrt(S).

Source: Heineman et al. 2025, Signal and Noise (arXiv 2508.13144); their noise is that of the last checkpoints of a run
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blockyard.report.stats.crossed import mean_squares
from blockyard.report.stats.paired import Values, finite
from blockyard.report.stats.verdict import MIN_SEEDS


@dataclass(frozen=True)
class SignalRow:
    """The signal and the noise of a metric, in its unit. arms, seeds: that count; ratio: None without any noise"""

    metric: str
    signal: float
    noise: float
    ratio: float | None
    arms: int
    seeds: int


def signal_rows(values: Mapping[str, Values]) -> list[SignalRow]:
    """Return a row for each metric with three seeds or more that two arms or more have, the highest ratio first.

    values: metric -> arm -> seed -> value. Arms with fewer seeds are left out, and so is a metric with one value alone
    """
    result = []
    for metric, by_arm in values.items():
        row = _row(metric, by_arm)
        if row is not None:
            result.append(row)
    return sorted(result, key=lambda row: math.inf if row.ratio is None else -row.ratio)


def _row(metric: str, by_arm: Values) -> SignalRow | None:
    import numpy as np

    measured = [finite(by_seed) for by_seed in by_arm.values()]
    measured = [by_seed for by_seed in measured if len(by_seed) >= MIN_SEEDS]
    if len(measured) < 2:
        return None
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in measured)))
    if len(seeds) < MIN_SEEDS:
        return None
    of_arms, _, of_rest = mean_squares(np.array([[by_seed[seed] for seed in seeds] for by_seed in measured]))
    if of_arms == 0:
        return None
    signal = math.sqrt(2 * of_arms / len(seeds))
    noise = math.sqrt(2 * of_rest)
    ratio = None
    if noise > 0:
        ratio = signal / noise
    return SignalRow(metric, signal, noise, ratio, len(measured), len(seeds))
