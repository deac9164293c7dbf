"""The difference between two arms, paired by seed.

Runs of one seed share the order of the data and, where shapes allow, the initial weights, so that the
differences vary less than either arm does.

A value that is not finite is a run that diverged. It counts as worse than every finite value, two of them as level: a
mean over the runs that are left would compare a selection, so arms with such runs are compared by order alone.

Source: Student 1908 (paired t test); Fisher 1935, The Design of Experiments, sec. 21 (sign flips);
Hedges 1981, Distribution Theory for Glass's Estimator of Effect Size (the correction for small samples).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from blockyard.report.load.document import Difference
from blockyard.report.stats.intervals import ROUNDING, all_equal, t_interval

if TYPE_CHECKING:
    import numpy as np

EXACT_UP_TO = 14  # seeds: all 16,384 combinations of signs are enumerated
SAMPLED = 99_999  # combinations drawn beyond that

Values = Mapping[str, Mapping[int, float]]  # arm -> seed -> value of the metric


def finite(values: Mapping[int, float | None]) -> dict[int, float]:
    """Return the finite values, by seed."""
    return {seed: float(v) for seed, v in sorted(values.items()) if v is not None and math.isfinite(v)}


def outcomes(values: Mapping[int, float | None]) -> dict[int, float]:
    """Return the values that there are, by seed; those of runs that diverged are not finite."""
    return {seed: float(value) for seed, value in sorted(values.items()) if value is not None}


def diverged_seeds(values: Mapping[int, float | None]) -> list[int]:
    """Return the seeds whose runs diverged."""
    return [seed for seed, value in outcomes(values).items() if not math.isfinite(value)]


def diverged_runs(arms: Iterable[str], values: Mapping[str, Mapping[int, float | None]]) -> str | None:
    """Return how many runs of each arm diverged, as a clause of a sentence; None where none did."""
    parts = []
    for arm in arms:
        lost = len(diverged_seeds(values.get(arm, {})))
        if lost:
            parts.append(diverged_share(arm, lost, len(outcomes(values[arm]))))
    return " and ".join(parts) or None


def diverged_share(arm: str, lost: int, runs: int) -> str:
    """Return how many runs of an arm diverged: "2 of 5 runs of none-8 ended with a loss that is not finite"."""
    return f"{lost} of {runs} run{'s' * (runs != 1)} of {arm} ended with a loss that is not finite"


def paired_difference(arm: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """Return the difference of two arms (seed -> finite value) over the seeds that both have."""
    seeds = sorted(arm.keys() & other.keys())
    return difference([arm[seed] for seed in seeds], [other[seed] for seed in seeds])


def sign_difference(arm: Mapping[int, float], other: Mapping[int, float], direction: str) -> Difference:
    """Return the difference of two arms' outcomes (seed -> value), tested by signs alone: McNemar's exact test.

    The mean is that of the seeds on which neither run diverged.

    Source: McNemar 1947; with the seeds as strata it is the exact form of the log-rank test for pairs.
    """
    from scipy import stats

    seeds = sorted(arm.keys() & other.keys())
    n = len(seeds)
    if not n:
        return Difference(0)
    ranks = [(_rank(arm[seed], direction), _rank(other[seed], direction)) for seed in seeds]
    ahead = sum(first > second for first, second in ranks)
    behind = sum(first < second for first, second in ranks)
    gaps = [gap for seed in seeds if math.isfinite(gap := arm[seed] - other[seed])]
    mean = None
    if gaps:
        mean = math.fsum(gaps) / len(gaps)
    p = float(stats.binomtest(ahead, ahead + behind).pvalue) if ahead + behind else 1.0
    return Difference(
        n,
        mean,
        permutation_p=p,
        smallest_p=smallest_p(n),
        signs=(ahead, behind, n - ahead - behind),
    )


def _rank(value: float, direction: str) -> float:
    """Return a number that is larger for a better outcome; a run that diverged has the least."""
    if not math.isfinite(value):
        return -math.inf
    if direction == "max":
        return value
    return -value


def difference(arm: Sequence[float], other: Sequence[float]) -> Difference:
    """Return `arm` minus `other`, element by element; both finite and in the same order of seeds."""
    import numpy as np

    first, second = np.asarray(arm, dtype=float), np.asarray(other, dtype=float)
    n = len(first)
    if not n:
        return Difference(0)
    gaps = first - second
    scale = float(np.abs([first, second]).max())
    mean = float(gaps.mean())
    if float(np.abs(gaps).max()) <= ROUNDING * scale:  # the same values
        gaps, mean = np.zeros(n), 0.0
    p, sampled = permutation_p(gaps, scale)
    same = Difference(n, mean, permutation_p=p, smallest_p=smallest_p(n), sampled=sampled)
    if n < 2 or all_equal(gaps, scale):
        return same
    low, high = t_interval(gaps)
    deviation = float(gaps.std(ddof=1))
    return replace(
        same,
        interval=(float(low), float(high)),
        t_p=float(t_p(first, second)),
        effect=effect(mean, deviation, n),
        deviation=deviation,
    )


def t_p(arm: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the two-sided p of the paired t test over the last axis: 2 x (..., n) -> (...)."""
    from scipy import stats

    return stats.ttest_rel(arm, other, axis=-1).pvalue  # (...)


def permutation_p(gaps: np.ndarray, scale: float) -> tuple[float, bool]:
    """Return the sign-flip p of the mean of paired differences (n,), and whether the flips were sampled.

    scale: of the metric's values. Means that differ by no more than rounding count as equal: accuracies over few
    samples, in single precision, have many such ties.
    """
    import numpy as np
    from scipy import stats

    if float(np.abs(gaps).max()) == 0 or len(gaps) < 2:
        return 1.0, False
    n = len(gaps)
    # Flipping a sign is swapping the pair, in two samples that differ by `gaps`.
    test = stats.permutation_test(
        (gaps / 2, -gaps / 2),
        lambda first, second, axis: (first - second).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT_UP_TO if n <= EXACT_UP_TO else SAMPLED,
        batch=4096,
        random_state=np.random.default_rng(0),
    )
    as_extreme = int((np.abs(test.null_distribution) >= abs(test.statistic) - ROUNDING * scale).sum())
    if n <= EXACT_UP_TO:
        return as_extreme / len(test.null_distribution), False
    return (as_extreme + 1) / (SAMPLED + 1), True  # the observed signs count as one of the samples


def smallest_p(n: int) -> float:
    """Return the smallest two-sided permutation p of n pairs: two of the 2^n combinations are the most extreme."""
    return min(1.0, 2.0 ** (1 - n)) if n else 1.0


def effect(mean: float, deviation: float, n: int) -> float | None:
    """Return d_z, corrected for its bias at small n; None for fewer than three pairs."""
    if n < 3 or deviation == 0:
        return None
    free = n - 1
    # The exact factor of Hedges 1981 by log-gamma: the gamma function itself overflows from about 340 seeds on.
    correction = math.exp(math.lgamma(free / 2) - math.lgamma((free - 1) / 2)) / math.sqrt(free / 2)
    return correction * mean / deviation
