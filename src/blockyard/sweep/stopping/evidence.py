"""Evidence about the mean of paired differences that stays valid however often one looks, and whenever one stops.

The e-value of the t statistic is the Bayes factor of an effect d = mean / standard deviation ~ N(0, g) against none,
with the same prior on the unknown scale under both:

    log e_n = -1/2 log(1 + n g) + n/2 [log(1 + t^2 / v) - log(1 + t^2 / (v (1 + n g)))],   v = n - 1

For normal differences it is a test martingale of what a change of unit leaves unchanged, so P(e_n >= 1/a at any n) <= a
without an effect (Ville). The means that it does not reject at 1/a form a confidence sequence: it covers the true mean
at all n at once with probability 1 - a.

No test of a mean holds for every skewed distribution at small n (Bahadur and Savage 1956). Two further questions have
tests that do: whether differences are symmetric about zero (signs), and the mean of differences with known bounds
(betting), which takes many seeds.

Source: Perez-Ortiz, Lardy, de Heide, Gruenwald 2022, E-statistics, group invariance and anytime-valid testing
(arXiv 2208.07610); Wang and Ramdas 2024, Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
variance (arXiv 2310.03722); Waudby-Smith and Ramdas 2024, Estimating means of bounded random variables by betting,
sec. 4.1 (arXiv 2010.09686); Holm 1979; Krichevsky and Trofimov 1981 (the mixture for signs).
Reference: the same Bayes factor by numerical integration of scipy's noncentral t; `ville` for the betting interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ALPHA = 0.05
PRIOR = 4.0  # g: the variance of the standardised effect under the alternative
ROUNDING = 1e-6  # metrics are computed in single precision: values closer than this count as equal

Interval = tuple[float, float]
UNKNOWN: Interval = (-math.inf, math.inf)


def log_bayes_factor(t2: float, n: int, g: float = PRIOR) -> float:
    """Return log e of a squared t statistic of n pairs; 0 for fewer than two."""
    if n < 2:
        return 0.0
    v = n - 1
    ratio = 1 + n * g  # of the variances of the mean under the two hypotheses
    if math.isinf(t2):  # the limit of the expression below
        return v / 2 * math.log(ratio)
    return -0.5 * math.log(ratio) + n / 2 * (math.log1p(t2 / v) - math.log1p(t2 / (v * ratio)))


def log_e_values(gaps: Sequence[float], scale: float, null: float = 0.0) -> list[float]:
    """Return log e against a mean of `null` after each of the differences.

    Differences that are equal within rounding have no standard deviation. There the signs decide, with a smaller
    e-value than an infinite t has.

    scale: of the metric's values
    """
    return [_log_e(gaps[: n + 1], scale, null) for n in range(len(gaps))]


def _log_e(gaps: Sequence[float], scale: float, null: float) -> float:
    n = len(gaps)
    shifted = [gap - null for gap in gaps]
    if n < 2:
        return 0.0
    if max(shifted) - min(shifted) <= ROUNDING * scale:
        return log_sign_e(shifted, scale)
    mean = math.fsum(shifted) / n
    squares = math.fsum((gap - mean) ** 2 for gap in shifted)
    return log_bayes_factor(n * (n - 1) * mean**2 / squares, n)


def log_sign_e(gaps: Sequence[float], scale: float) -> float:
    """Return log e of the signs, against differences that are symmetric about zero. Differences of zero do not count.

    No moment of the differences is assumed. Seven equal signs give e = 27, six 14.
    """
    signs = [gap > 0 for gap in gaps if abs(gap) > ROUNDING * scale]
    return _log_mixture(sum(signs), len(signs))


def log_equal_e(gaps: Sequence[float], scale: float) -> float:
    """Return log e against "half of all seeds or fewer give the same value", of differences that are all zero.

    0 where one is not: their size then decides.
    """
    if any(abs(gap) > ROUNDING * scale for gap in gaps):
        return 0.0
    return _log_mixture(len(gaps), len(gaps))


def _log_mixture(count: int, n: int) -> float:
    """Return the log of 2^n B(count + 1/2, n - count + 1/2) / B(1/2, 1/2)."""
    beta = math.lgamma(count + 0.5) + math.lgamma(n - count + 0.5) - math.lgamma(n + 1.0)
    return n * math.log(2) + beta - math.log(math.pi)


def anytime_p(log_es: Sequence[float]) -> float:
    """Return 1 over the largest e-value so far: a p that is valid at any, also a random, number of seeds."""
    return min(1.0, math.exp(-max(log_es, default=0.0)))


def confidence_sequence(gaps: Sequence[float], scale: float, alpha: float = ALPHA, first: int = 2) -> list[Interval]:
    """Return the interval of the mean after each of the differences. Each interval lies within the earlier ones.

    It is without ends while the differences are fewer than `first`, or equal: their standard deviation is unknown.
    """
    intervals: list[Interval] = [UNKNOWN] * min(first - 1, len(gaps))
    low, high = UNKNOWN
    for n in range(first, len(gaps) + 1):
        low_n, high_n = _interval(gaps[:n], scale, alpha)
        low, high = max(low, low_n), min(high, high_n)
        # Empty only where the differences contradict earlier ones: they are not of one distribution.
        if low > high:
            low, high = low_n, high_n
        intervals.append((low, high))
    return intervals


def _interval(gaps: Sequence[float], scale: float, alpha: float, g: float = PRIOR) -> Interval:
    n = len(gaps)
    if n < 2 or max(gaps) - min(gaps) <= ROUNDING * scale:
        return UNKNOWN
    mean = math.fsum(gaps) / n
    half = radius(n, math.fsum((gap - mean) ** 2 for gap in gaps), alpha, g)
    return mean - half, mean + half


def radius(n: int, squares: float, alpha: float, g: float = PRIOR) -> float:
    """Return half the width of the interval after n differences. squares: of their distances from their mean, summed"""
    variances = 1 + n * g
    # With x = t^2 / v, log e < log(1 / alpha) reads (1 + x) / (1 + x / variances) < ratio.
    ratio = math.exp(2 / n * (math.log(1 / alpha) + 0.5 * math.log(variances)))
    if ratio >= variances:  # the left side stays below `variances` for every x, so that no mean is rejected
        return math.inf
    return math.sqrt(squares / n * (ratio - 1) / (1 - ratio / variances))


def betting_interval(
    gaps: Sequence[float], bounds: Interval, alpha: float = ALPHA, cells: int = 1_000
) -> Interval | None:
    """Return the confidence sequence of the mean of bounded differences after the last one; None where it is empty.

    The capital of a gambler who bets on the mean being above m, and one who bets on its being below, half each: m stays
    in the interval while their sum is below 1 / alpha (equation 26 with the predictable plug-in bets of equation 23).
    Valid for any distribution within the bounds; the ends lie on a grid of `cells` means, outwards.
    """
    import numpy as np

    low, high = bounds
    x = (np.asarray(gaps, dtype=float) - low) / (high - low)  # (n,) in [0, 1]
    m = (np.arange(cells) + 0.5) / cells  # (cells,)
    index = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (index + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (index + 1)
    # A bet may depend on earlier samples alone, else the capital is no martingale.
    before = np.concatenate(([0.25], variance[:-1]))
    bets = np.sqrt(2 * np.log(2 / alpha) / (before * index * np.log(index + 1)))  # (n,)
    # Bounded, so that no sample can take more than half of the capital.
    up = np.minimum(bets[:, None], 0.5 / m)
    down = np.minimum(bets[:, None], 0.5 / (1 - m))
    gains = x[:, None] - m
    capital = np.log(0.5) + np.logaddexp(
        np.cumsum(np.log1p(up * gains), axis=0), np.cumsum(np.log1p(-down * gains), axis=0)
    )  # (n, cells)
    kept = np.flatnonzero((capital < np.log(1 / alpha)).all(axis=0))
    if not len(kept):
        return None
    # Out to the last rejected means: an end lies between a rejected and a kept mean.
    ends = np.clip([(kept[0] - 0.5) / cells, (kept[-1] + 1.5) / cells], 0.0, 1.0) * (high - low) + low
    return float(ends[0]), float(ends[1])


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's corrected p values: the k-th smallest of m times m - k + 1, never falling, at most 1.

    Equal to statsmodels' multipletests(method="holm"), which runs the garbage collector at each call.
    """
    result = [0.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, (len(ps) - rank) * ps[index])
        result[index] = min(1.0, largest)
    return result
