"""How many seeds a comparison needs, and how large an effect a number of seeds can detect.

Source: power of the paired t test from the noncentral t distribution (Cohen 1988, Statistical Power Analysis
for the Behavioral Sciences, chap. 2); the smallest two-sided p of the exact sign-flip test of n pairs is 2^(1 - n).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache

ALPHA = 0.05
POWER = 0.80
MIN_SEEDS = 3  # common seeds; fewer give no verdict
MAX_SEEDS = 1_000  # more are reported as "more than 1,000"


def min_seeds_exact(compared: int, alpha: float = ALPHA) -> int:
    """Return the fewest seeds whose smallest exact p, corrected for `compared` arms, is at most alpha."""
    return max(MIN_SEEDS, math.ceil(1 + math.log2(max(1, compared) / alpha)))


def seeds_needed(effect: float, alpha: float, power: float = POWER) -> int | None:
    """Return the fewest seeds with which a paired t test detects an effect (d_z); None if more than MAX_SEEDS."""
    counts = range(MAX_SEEDS + 1)
    n = bisect_left(counts, power, lo=MIN_SEEDS, key=lambda n: t_test_power(abs(effect), n, alpha))
    return n if n <= MAX_SEEDS else None


@lru_cache(maxsize=1024)
def detectable_effect(n: int, alpha: float, power: float = POWER) -> float:
    """Return the smallest effect (d_z) that a paired t test of n >= 2 seeds detects with this power."""
    from scipy import optimize, stats

    # An effect at which even an overestimated standard deviation leaves t above its critical value.
    most = (2 * stats.t.isf(alpha / 2, n - 1) + 5) / math.sqrt(n)
    return float(optimize.brentq(lambda effect: t_test_power(effect, n, alpha) - power, 0.0, most))


def t_test_power(effect: float, n: int, alpha: float) -> float:
    """Return the power of a two-sided paired t test of n pairs for an effect (d_z) >= 0.

    statsmodels' TTestPower computes the same, but returns NaN at scattered points, most often for few seeds and many
    arms, and its `solve_power` then fails to converge. The NaN comes from the lower tail, which is negligible there.
    """
    from scipy import stats

    critical, shift = stats.t.isf(alpha / 2, n - 1), effect * math.sqrt(n)
    upper, lower = stats.nct.sf(critical, n - 1, shift), stats.nct.cdf(-critical, n - 1, shift)
    return float(upper if math.isnan(lower) else upper + lower)
