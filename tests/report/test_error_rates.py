"""How often verdicts and intervals are wrong, on simulated sweeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from statsmodels.stats.power import TTestPower

from blockyard.report.stats import intervals, verdict
from blockyard.report.stats.intervals import bca_interval, mean_of, t_interval
from blockyard.report.stats.paired import Difference, difference, t_p
from blockyard.report.stats.verdict import compare_arms, corrected

SEEDS = (3, 5, 10)


SWEEPS = 2_000


ARMS = 3  # beside the baseline


def _sweeps(n: int, sweeps: int, arms: int = ARMS) -> np.ndarray:
    """Values without any effect: a part that all arms of a seed share, and noise. (sweeps, 1 + arms, n)."""
    draw = np.random.default_rng(n)
    return 0.9 + 0.01 * draw.normal(size=(sweeps, 1, n)) + 0.01 * draw.normal(size=(sweeps, 1 + arms, n))


def _false_positives(figures: np.ndarray) -> float:
    """The share of sweeps in which any arm gets a verdict, from the functions that `compare_arms` calls."""
    arms, base = figures[:, 1:], np.broadcast_to(figures[:, :1], figures[:, 1:].shape)
    ps, means, n = t_p(arms, base), (arms - base).mean(-1), figures.shape[-1]
    wrong = 0
    for p, mean in zip(ps, means, strict=True):
        results = corrected({str(k): Difference(n, float(mean[k]), t_p=float(p[k])) for k in range(len(p))})
        wrong += any(verdict.verdict(one, "max") in ("better", "worse") for one in results.values())
    return wrong / len(figures)


@pytest.mark.parametrize("n", SEEDS)
def test_without_an_effect_few_sweeps_claim_one(n: int) -> None:
    rate = _false_positives(_sweeps(n, SWEEPS))
    assert 0.03 <= rate <= 0.06, rate


def test_the_simulation_sees_a_missing_correction(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncorrected(result: dict[str, Difference]) -> dict[str, Difference]:
        return {name: replace(one, holm_p=one.p) for name, one in result.items()}

    monkeypatch.setitem(globals(), "corrected", uncorrected)
    assert _false_positives(_sweeps(5, 1_000)) > 0.08


@pytest.mark.full
@pytest.mark.parametrize("n", [3, 5])
def test_the_whole_judgement_is_made_of_those_parts(n: int) -> None:
    """`compare_arms` on simulated sweeps: the same verdicts as its parts give."""
    figures = _sweeps(n, 120)
    by_hand = []
    for sweep in figures:
        values = {str(k): dict(enumerate(map(float, row))) for k, row in enumerate(sweep)}
        by_hand.append(any(one.verdict in ("better", "worse") for one in compare_arms(values, "0", "max").values()))
    assert np.mean(by_hand) == pytest.approx(_false_positives(figures))


@pytest.mark.sampled(100)
@pytest.mark.parametrize("n", SEEDS)
def test_accuracies_of_few_images_do_not_make_effects(n: int) -> None:
    """Values in steps of 1/360, in single precision: many ties and equal differences."""
    draw = np.random.default_rng(n)
    wrong = 0
    figures = np.float32(np.round(324 + 0.8 * draw.normal(size=(300, 3, n))) / 360).astype(float)
    for sweep in figures:
        gaps = corrected({str(k): difference(sweep[k], sweep[0]) for k in (1, 2)})
        wrong += any(verdict.verdict(gap, "max") in ("better", "worse") for gap in gaps.values())
    assert wrong / len(figures) <= 0.06


@pytest.mark.parametrize("n", SEEDS)
def test_intervals_cover_what_they_say(n: int) -> None:
    figures = _sweeps(n, 20_000, arms=1)
    low, high = t_interval(figures[:, 1])
    assert 0.94 <= np.mean((low <= 0.9) & (high >= 0.9)) <= 0.96
    low, high = t_interval(figures[:, 1] - figures[:, 0])
    assert 0.94 <= np.mean((low <= 0) & (high >= 0)) <= 0.96
    one = mean_of(list(figures[0, 1])).interval
    assert one == pytest.approx([float(end[0]) for end in t_interval(figures[:1, 1])])


@pytest.mark.full
def test_bca_covers_about_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 999)
    draw = np.random.default_rng(0)
    ends = np.array([bca_interval(draw.normal(size=24)) for _ in range(600)])
    assert 0.89 <= np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0)) <= 0.97


def test_a_bootstrap_of_few_seeds_would_cover_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 999)
    draw = np.random.default_rng(0)
    ends = np.array([bca_interval(draw.normal(size=5)) for _ in range(300)])
    assert np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0)) < 0.89


@pytest.mark.full
def test_whole_sweeps_without_an_effect() -> None:
    """2,000 sweeps through `compare_arms` itself, sentences included."""
    wrong = 0
    for sweep in _sweeps(5, SWEEPS):
        values = {str(k): dict(enumerate(map(float, row))) for k, row in enumerate(sweep)}
        wrong += any(one.verdict in ("better", "worse") for one in compare_arms(values, "0", "max").values())
    assert wrong / SWEEPS <= 0.06


@pytest.mark.full
def test_bca_covers_at_twenty_and_thirty() -> None:
    draw = np.random.default_rng(0)
    for n in (20, 30):
        ends = np.array([bca_interval(draw.normal(size=n)) for _ in range(1_000)])
        assert 0.91 <= np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0)) <= 0.96


def test_a_true_effect_is_found() -> None:
    draw = np.random.default_rng(0)
    result = 0
    for _ in range(100):
        base = draw.normal(0.9, 0.01, 5)
        arm = base + draw.normal(0.02, 0.01, 5)
        gap = corrected({"arm": difference(arm, base)})["arm"]
        result += verdict.verdict(gap, "max") == "better"
    power = TTestPower().power(2.0, 5, 0.05)
    assert result / 100 == pytest.approx(power, abs=0.1)
