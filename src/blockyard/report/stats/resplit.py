"""The difference of two arms where each seed has a split of its own: for new seeds and new splits of the data.

The splits of one data set overlap, so that the differences of their seeds are not independent and vary less than those
of new data would. With J splits of n_train and n_test samples the variance of the mean difference is taken to be

    (1 / J + n_test / n_train) S^2        S^2: the sample variance of the differences

and Student's t has J - 1 degrees of freedom: the corrected resampled t test.

Source: Nadeau and Bengio 2003, Inference for the Generalization Error, sec. 4; Bouthillier et al. 2021, Accounting for
Variance in Machine Learning Benchmarks (arXiv 2103.03098), for splits as a source of variance among others.
Coverage: `benchmarks/resplit.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from blockyard.report.load.document import Difference
from blockyard.report.stats.intervals import LEVEL, ROUNDING, Mean, all_equal
from blockyard.report.stats.paired import Values, finite

OVER = "splits"


def inflation(seeds: int, ratio: float) -> float:
    """Return by how much the variance of a mean over so many splits is larger than that of independent values.

    ratio: test samples over training samples
    """
    return 1 + seeds * ratio


def split_difference(gaps: Sequence[float], ratio: float, scale: float = 0.0) -> Difference:
    """Return the mean of the differences of each seed, with its corrected t test and 95 % interval.

    gaps: finite, one for each seed; ratio: test samples over training samples
    scale: of the metric's values, within whose rounding differences count as equal
    """
    import numpy as np
    from scipy import stats

    data = np.asarray(gaps, dtype=float)
    n = len(gaps)
    mean = float(data.mean()) if n else None
    if mean is None or n < 2 or all_equal(data, scale or float(np.abs(data).max())):
        same = n > 1 and abs(mean or 0.0) <= ROUNDING * (scale or 1.0)
        return Difference(n, mean, over=OVER, permutation_p=1.0 if same else None)
    error = float(data.std(ddof=1)) * math.sqrt(inflation(n, ratio) / n)
    free = n - 1.0
    half = float(stats.t.ppf((1 + LEVEL) / 2, free)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, free))
    return Difference(n, mean, interval=(mean - half, mean + half), t_p=p, error=error, free=free, over=OVER)


def split_mean(values: Sequence[float], ratio: float) -> Mean:
    """Return the mean of an arm over its splits, with the interval of `split_difference`."""
    own = split_difference(values, ratio)
    return Mean(own.n, own.mean, own.interval, "t")


def difference_of_sums(values: Values, ratio: float, first: tuple[str, ...], second: tuple[str, ...]) -> Difference:
    """Return the difference of two sums of arms, such as (a, d) and (b, c), over the seeds that all of them have."""
    arms: list[Mapping[int, float]] = [finite(values.get(arm, {})) for arm in (*first, *second)]
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in arms)))
    signs = [1.0] * len(first) + [-1.0] * len(second)
    gaps = [math.fsum(sign * arm[seed] for sign, arm in zip(signs, arms, strict=True)) for seed in seeds]
    scale = max((abs(arm[seed]) for arm in arms for seed in seeds), default=0.0)
    return split_difference(gaps, ratio, scale)
