"""The difference of two arms, seed by seed: arms of one seed share their data order and, where they can,
their initial weights, so that their difference spreads less than either.

Source: Student 1908 (paired t test); Fisher 1935, The Design of Experiments, sec. 21 (sign flips);
Hedges 1981, Distribution Theory for Glass's Estimator of Effect Size (the correction for small samples).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockyard.report.stats.intervals import ROUNDING, Interval, flat, t_interval

if TYPE_CHECKING:
    import numpy as np

EXACT_UP_TO = 14  # seeds: all 16,384 ways to flip signs are tried
SAMPLED = 99_999  # of them beyond that
EFFECT = "d_z with Hedges' correction: mean over standard deviation of the paired differences"


@dataclass(frozen=True)
class Difference:
    """An arm minus another over their common seeds, in the metric's unit.

    interval: 95 %, Student's t; t_p: paired t test; both None where the differences do not spread
    permutation_p: of flipping signs, two-sided; sampled: not all flips were tried
    smallest_p: the smallest permutation p that n seeds allow; holm_p: after correction over arms
    effect: see EFFECT; deviation: standard deviation of the differences
    """

    n: int
    mean: float | None = None
    interval: Interval | None = None
    t_p: float | None = None
    permutation_p: float | None = None
    smallest_p: float | None = None
    sampled: bool = False
    holm_p: float | None = None
    effect: float | None = None
    deviation: float | None = None

    @property
    def p(self) -> float | None:
        """The p that decides: of the t test; of the permutations where all differences are equal."""
        return self.permutation_p if self.t_p is None else self.t_p


def common(arm: Mapping[int, float], other: Mapping[int, float]) -> list[int]:
    """The seeds for which both have a figure."""
    return sorted(arm.keys() & other.keys())


def difference(arm: Sequence[float], other: Sequence[float]) -> Difference:
    """`arm` minus `other`, value by value; both finite and in the same order of seeds."""
    import numpy as np

    ours, theirs = np.asarray(arm, dtype=float), np.asarray(other, dtype=float)
    n = len(ours)
    if not n:
        return Difference(0)
    gaps = ours - theirs
    scale = float(np.abs([ours, theirs]).max())
    mean = float(gaps.mean())
    if float(np.abs(gaps).max()) <= ROUNDING * scale:  # the same figures
        gaps, mean = np.zeros(n), 0.0
    p, sampled = permutation_p(gaps, scale)
    shared = {"permutation_p": p, "smallest_p": smallest_p(n), "sampled": sampled}
    if n < 2 or flat(gaps, scale):
        return Difference(n, mean, **shared)
    low, high = t_interval(gaps)
    deviation = float(gaps.std(ddof=1))
    return Difference(
        n,
        mean,
        (float(low), float(high)),
        float(t_p(ours, theirs)),
        effect=effect(mean, deviation, n),
        deviation=deviation,
        **shared,
    )


def t_p(arm: np.ndarray, other: np.ndarray) -> np.ndarray:
    """p of the paired t test over the last axis, two-sided: 2 x (..., n) -> (...)."""
    from scipy import stats

    return stats.ttest_rel(arm, other, axis=-1).pvalue  # (...)


def permutation_p(gaps: np.ndarray, scale: float) -> tuple[float, bool]:
    """p of the mean of paired differences (n,) when their signs are flipped; whether flips were sampled.

    scale: of the figures. Means that differ by their rounding count as equal: accuracies of few samples,
    in single precision, have many such.
    """
    import numpy as np
    from scipy import stats

    if float(np.abs(gaps).max()) == 0 or len(gaps) < 2:
        return 1.0, False
    n = len(gaps)
    # Of two samples that differ by `gaps`, each pair is swapped or not.
    found = stats.permutation_test(
        (gaps / 2, -gaps / 2),
        _mean_gap,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT_UP_TO if n <= EXACT_UP_TO else SAMPLED,
        batch=4096,
        random_state=np.random.default_rng(0),
    )
    as_far = int((np.abs(found.null_distribution) >= abs(found.statistic) - ROUNDING * scale).sum())
    if n <= EXACT_UP_TO:
        return as_far / len(found.null_distribution), False
    return (as_far + 1) / (SAMPLED + 1), True  # the signs as they are count as one of the flips


def _mean_gap(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    return (first - second).mean(axis=axis)


def smallest_p(n: int) -> float:
    """The smallest two-sided permutation p of n pairs: two of the 2^n ways are as extreme as can be."""
    return min(1.0, 2.0 ** (1 - n)) if n else 1.0


def effect(mean: float, deviation: float, n: int) -> float | None:
    """d_z, corrected for its bias at small n; None where two pairs or fewer cannot say."""
    if n < 3 or deviation == 0:
        return None
    free = n - 1
    correction = math.exp(math.lgamma(free / 2) - math.lgamma((free - 1) / 2)) / math.sqrt(free / 2)
    return correction * mean / deviation
