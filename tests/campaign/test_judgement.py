"""The e-value of a proposal against numerical integration, and what e-LOND keeps in simulated campaigns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from blockyard.campaign.judgement import Decision, decide, is_hopeless, level, log_evidence, log_one_sided
from blockyard.sweep.stopping.evidence import PRIOR


@pytest.mark.parametrize(("n", "t"), [(2, 0.4), (3, -2.0), (6, 4.0), (12, -1.0), (12, 7.0), (20, 0.1)])
def test_evidence_is_the_bayes_factor_over_positive_effects(n: int, t: float) -> None:
    def integrand(effect: float) -> float:
        likelihood = stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) / stats.t.pdf(t, n - 1)
        return 2 * stats.norm.pdf(effect, 0, math.sqrt(PRIOR)) * float(likelihood)

    bayes_factor = integrate.quad(integrand, 0, 20, limit=200, points=[0.5, 1, 2, 4])[0]
    assert log_one_sided(t, n) == pytest.approx(math.log(bayes_factor), rel=1e-6, abs=1e-7)


def test_evidence_rises_with_t_and_falls_with_a_worse_mean() -> None:
    """So it holds for every mean that is not positive: subtracting a constant lowers each t."""
    for n in (2, 3, 8, 20):
        values = [log_one_sided(t, n) for t in np.linspace(-8, 8, 161)]
        assert min(np.diff(values)) > 0
    gains = [0.3, 0.1, 0.4, 0.2]
    assert log_evidence([gain - 0.2 for gain in gains], 1.0) < log_evidence(gains, 1.0)


def test_no_mean_that_is_not_positive_gives_evidence_on_average() -> None:
    """The mean of e at the stopping time is at most 1, to three standard errors."""
    draw = np.random.default_rng(0)
    for mean in (0.0, -0.3):
        values = []
        for _ in range(1_500):
            gains = (draw.normal(size=8) + mean).tolist()
            count = next(n for n in range(3, 9) if n == 8 or log_evidence(gains[:n], 1.0) >= math.log(10))
            values.append(math.exp(log_evidence(gains[:count], 1.0)))
        assert np.mean(values) <= 1 + 3 * np.std(values) / math.sqrt(len(values))


def test_levels_fall_with_the_tries_and_rise_with_the_keeps() -> None:
    assert level(0.05, 100, 0) == pytest.approx(0.0005)
    assert level(0.05, 200, 0) == pytest.approx(0.00025)
    assert level(0.05, 100, 3) == pytest.approx(0.002)
    # Without a keep all levels together are the error rate.
    assert math.fsum(level(0.05, 100, 0) for _ in range(100)) == pytest.approx(0.05)


def test_a_decision_is_kept_open_or_hopeless() -> None:
    strong = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02]
    reason = "better: the evidence has reached the 20 that its turn asks for"
    assert decide(strong, 1.0, 0.05, 20) == Decision("kept", reason)
    assert decide(strong[:4], 1.0, 1e-7, 20) is None
    assert decide([-value for value in strong], 1.0, 0.05, 20) is not None
    worse = decide([-1.0, -1.1, -0.9], 1.0, 0.05, 20)
    assert worse is not None
    assert worse.verdict == "rejected"
    end = decide([1.0, -0.5, 0.7, 0.9], 1.0, 0.001, 4)
    assert end is not None
    assert end.verdict == "open"
    assert log_evidence([0.5, 0.5, 0.5], 1.0) == 0  # no spread, no evidence
    assert is_hopeless([0.0, 0.0, 0.0], 1.0, math.log(20), 20)
    assert not is_hopeless([0.5, 0.5, 0.5], 1.0, math.log(20), 20)


def test_the_share_of_false_keeps_is_below_the_error_rate() -> None:
    """Simulates 30 campaigns of 40 proposals; 30 of these change nothing and share the noise of the baseline."""
    draw = np.random.default_rng(1)
    shares = []
    found = 0
    for _ in range(30):
        effects = draw.permutation([0.0] * 30 + [2.5] * 10)
        baseline = draw.normal(scale=math.sqrt(0.5), size=12)
        kept: list[float] = []
        for effect in effects:
            gains = (effect + draw.normal(scale=math.sqrt(0.5), size=12) - baseline).tolist()
            alpha = level(0.2, 40, len(kept))
            decisions = (decide(gains[:count], 1.0, alpha, 12) for count in range(4, 13))
            if next(filter(None, decisions)).verdict == "kept":
                kept.append(float(effect))
                baseline = draw.normal(scale=math.sqrt(0.5), size=12)
        shares.append(kept.count(0.0) / max(1, len(kept)))
        found += kept.count(2.5)
    assert np.mean(shares) <= 0.2
    assert found > 0.8 * 300
