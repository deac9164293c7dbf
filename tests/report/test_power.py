"""Advice on the number of seeds against statsmodels and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from statsmodels.stats.power import TTestPower

from blockyard.report.stats.paired import smallest_p
from blockyard.report.stats.verdict import detectable_effect, min_seeds_exact, seeds_needed, t_test_power

SEEDS = (3, 5, 10)


def test_advice_on_seeds_is_statsmodels() -> None:
    for size, alpha in ((0.5, 0.05), (1.0, 0.05 / 3), (2.5, 0.05), (0.2, 0.01)):
        wanted = TTestPower().solve_power(effect_size=size, alpha=alpha, power=0.8)
        assert seeds_needed(size, alpha) == max(3, math.ceil(wanted))
        assert seeds_needed(-size, alpha) == seeds_needed(size, alpha)
    assert seeds_needed(0.0, 0.05) is None
    assert seeds_needed(0.01, 0.05) is None
    assert seeds_needed(1e6, 0.05) == 3
    for n in SEEDS:
        wanted = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
        assert detectable_effect(n, 0.05) == pytest.approx(wanted, rel=1e-3)


def _power(effect: float, n: int, alpha: float) -> float:
    """The power of a paired t test, integrated over the estimated standard deviation s (of a true one of 1)."""
    free, shift = n - 1, effect * math.sqrt(n)
    critical = stats.t.isf(alpha / 2, free)

    def density(s: float) -> float:
        rejected = stats.norm.sf(critical * s - shift) + stats.norm.cdf(-critical * s - shift)
        return 2 * free * s * stats.chi2.pdf(free * s * s, free) * rejected

    end = (shift + 9) / critical
    return float(quad(density, 0, end, limit=500, points=[max(0.0, (shift - 9) / critical)])[0])


@pytest.mark.sampled(100)
@pytest.mark.parametrize("alpha", [0.05 / arms for arms in (1, 2, 7, 100)])
def test_seeds_and_effects_are_those_at_which_the_power_is_reached(alpha: float) -> None:
    """Also where statsmodels' power is NaN: many arms and few seeds."""
    for n in (3, 4, 5, 6, 8, 12, 30, 100):
        effect_size = detectable_effect(n, alpha)
        assert _power(effect_size, n, alpha) == pytest.approx(0.8, abs=1e-6)
        assert t_test_power(effect_size, n, alpha) == pytest.approx(0.8, abs=1e-9)
    for size in np.geomspace(0.2, 20, 25):
        n = seeds_needed(float(size), alpha)
        assert n is not None
        assert _power(float(size), n, alpha) >= 0.8 - 1e-9
        assert n == 3 or _power(float(size), n - 1, alpha) < 0.8


def test_the_fewest_seeds_that_an_exact_test_needs() -> None:
    for arms in (1, 2, 5, 20):
        n = min_seeds_exact(arms)
        assert smallest_p(n) * arms <= 0.05
        assert n == 3 or smallest_p(n - 1) * arms > 0.05
