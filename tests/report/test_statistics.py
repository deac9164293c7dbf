"""Each statistic of a comparison against scipy, statsmodels or an independent formula, and on simulated sweeps."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from blockyard.report.stats import intervals, verdict
from blockyard.report.stats.intervals import bca_interval, mean_of, t_interval
from blockyard.report.stats.paired import (
    Difference,
    difference,
    effect,
    paired_difference,
    permutation_p,
    smallest_p,
    t_p,
)
from blockyard.report.stats.power import detectable_effect, min_seeds_exact, seeds_needed, t_test_power
from blockyard.report.stats.verdict import compare_arms, corrected

SEEDS = (3, 5, 10)
SWEEPS = 2_000
ARMS = 3  # beside the baseline


def _pair(n: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(n)
    block = draw.normal(size=n)
    return block + draw.normal(shift, 0.5, n), block + draw.normal(0, 0.5, n)


# -- means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, *SEEDS, 19])
def test_few_values_have_students_interval(n: int) -> None:
    values = _pair(n)[0]
    result = mean_of(list(values))
    assert (result.n, result.kind) == (n, "t")
    assert result.mean == pytest.approx(np.mean(values))
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert result.interval == pytest.approx((wanted.low, wanted.high))


def test_from_twenty_values_on_the_interval_is_bca() -> None:
    values = np.random.default_rng(0).exponential(size=24)
    result = mean_of(list(values))
    assert result.kind == "bca"
    wanted = stats.bootstrap(
        (np.sort(values),), np.mean, method="BCa", n_resamples=9_999, random_state=np.random.default_rng(0)
    ).confidence_interval
    assert result.interval == pytest.approx((wanted.low, wanted.high))
    assert mean_of(list(values[::-1])).interval == result.interval, "the order of seeds matters"
    assert mean_of(list(values[:19])).kind == "t"


def test_values_that_cannot_say_have_no_interval() -> None:
    assert mean_of([]).mean is None
    assert mean_of([0.5]).interval is None
    assert mean_of([0.9] * 5).interval is None
    assert mean_of([1.0] * 30).interval is None  # bca of equal values is no number
    single = np.float32([0.9, 0.9 + 1e-8, 0.9]).astype(float)
    assert mean_of(list(single)).interval is None


# -- differences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*SEEDS, 13])
def test_a_difference_is_scipys(n: int) -> None:
    arm, other = _pair(n)
    result = difference(arm, other)
    test = stats.ttest_rel(arm, other)
    assert result.mean == pytest.approx(np.mean(arm - other))
    assert result.t_p == pytest.approx(test.pvalue)
    ends = test.confidence_interval(0.95)
    assert result.interval == pytest.approx((ends.low, ends.high))
    assert result.deviation == pytest.approx(np.std(arm - other, ddof=1))
    assert result.p == result.t_p


@pytest.mark.parametrize("n", [2, *SEEDS, 12])
def test_the_exact_p_counts_every_flip_of_signs(n: int) -> None:
    gaps = np.subtract(*_pair(n))
    flips = np.array(list(itertools.product([1, -1], repeat=n)))
    wanted = np.mean(np.abs(flips @ gaps) >= abs(gaps.sum()) - 1e-9)
    assert permutation_p(gaps, 1.0) == (pytest.approx(wanted), False)
    arm, other = _pair(n)
    scipys = stats.permutation_test((arm, other), lambda x, y: np.mean(x - y), permutation_type="samples")
    assert difference(arm, other).permutation_p == pytest.approx(scipys.pvalue)
    all_up = np.abs(gaps)
    assert permutation_p(all_up, 1.0)[0] == pytest.approx(smallest_p(n)) == pytest.approx(2 / 2**n)


def test_flips_are_sampled_where_there_are_too_many() -> None:
    gaps = np.subtract(*_pair(20))
    p, sampled = permutation_p(gaps, 1.0)
    assert sampled
    flips = np.array(list(itertools.product([1, -1], repeat=20)), dtype=np.int8)
    exact = np.mean(np.abs(flips @ gaps) >= abs(gaps.sum()) - 1e-9)
    assert p == pytest.approx(exact, abs=0.005)
    assert permutation_p(gaps, 1.0) == (p, True)


def test_equal_sums_count_as_equal_in_single_precision() -> None:
    draw = np.random.default_rng(0)
    flips = np.array(list(itertools.product([1, -1], repeat=5)))
    for _ in range(60):
        right = draw.integers(330, 350, (2, 5))  # of 360 images
        whole = right[0] - right[1]
        wanted = np.mean(np.abs(flips @ whole) >= abs(whole.sum()))
        assert difference(*np.float32(right / 360).astype(float)).permutation_p == pytest.approx(wanted)


def test_the_effect_is_d_z_with_hedges_correction() -> None:
    for n in SEEDS:
        free = n - 1
        exact = math.gamma(free / 2) / (math.sqrt(free / 2) * math.gamma((free - 1) / 2))
        assert effect(0.3, 0.5, n) == pytest.approx(0.6 * exact)
        assert exact == pytest.approx(1 - 3 / (4 * free - 1), abs=0.01 if n > 3 else 0.02)
    assert effect(0.3, 0.5, 2) is None


def test_the_effect_is_not_biased() -> None:
    gaps = np.random.default_rng(0).normal(0.8, 1.0, (4_000, 5))
    result = [effect(float(g.mean()), float(g.std(ddof=1)), 5) for g in gaps]
    assert np.mean(result) == pytest.approx(0.8, abs=0.04)
    assert np.mean(gaps.mean(1) / gaps.std(1, ddof=1)) > 0.9, "uncorrected it would be"


def test_only_common_seeds_are_compared() -> None:
    result = paired_difference({0: 9.0, 1: 2.0, 2: 3.5, 7: 1.0}, {2: 3.0, 7: 0.0, 1: 1.5, 9: 0.0})
    assert result.n == 3
    assert result.mean == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    assert paired_difference({0: 1.0}, {1: 2.0}) == Difference(0)


def test_equal_differences_have_no_t_test_but_an_exact_one() -> None:
    result = difference([0.8, 0.81, 0.83], [0.7, 0.71, 0.73])
    assert result.t_p is None
    assert result.interval is None
    assert result.p == result.permutation_p == pytest.approx(0.25)
    single = np.float32([[341, 342, 345], [340, 341, 344]] / np.float32(360)).astype(float)
    assert difference(*single).t_p is None, "a t test of rounding errors"
    same = difference([0.8, 0.9], [0.8, 0.9])
    assert (same.mean, same.p, same.t_p) == (0.0, 1.0, None)
    one = difference([0.8], [0.7])
    assert (one.n, one.t_p, one.permutation_p, one.smallest_p) == (1, None, 1.0, 1.0)


# -- verdicts ------------------------------------------------------------------------------------------


def test_p_is_corrected_over_the_arms_that_can_have_a_verdict() -> None:
    ps = {"a": 0.01, "b": 0.04, "c": 0.03}
    result = {name: Difference(5, 0.1, t_p=p) for name, p in ps.items()} | {"few": Difference(2, 0.1, t_p=1e-9)}
    made = corrected(result)
    wanted = multipletests(list(ps.values()), method="holm")[1]
    assert [made[name].holm_p for name in ps] == pytest.approx(list(wanted))
    assert made["few"].holm_p is None
    draw = np.random.default_rng(0)
    for n in (1, 2, 7, 30):
        ps = list(draw.random(n) ** 3)
        assert verdict.holm(ps) == pytest.approx(list(multipletests(ps, method="holm")[1]))
    assert verdict.holm([]) == []


@pytest.mark.parametrize(("direction", "gain", "loss"), [("max", "better", "worse"), ("min", "worse", "better")])
def test_the_verdict_follows_the_metrics_direction(direction: str, gain: str, loss: str) -> None:
    sure = Difference(5, 0.1, t_p=0.01, holm_p=0.02)
    assert verdict.verdict(sure, direction) == gain
    assert verdict.verdict(replace(sure, mean=-0.1), direction) == loss
    assert verdict.verdict(replace(sure, holm_p=0.051), direction) == "no difference shown"
    assert verdict.verdict(replace(sure, holm_p=0.05), direction) == gain


@pytest.mark.parametrize("n", [0, 1, 2])
def test_no_verdict_from_fewer_than_three_seeds(n: int) -> None:
    base = {seed: 0.5 + 0.01 * seed for seed in range(n)}
    values = {"base": base, "arm": {seed: value + 0.3 + 0.001 * seed for seed, value in base.items()}}
    result = compare_arms(values, "base", "max")["arm"]
    assert result.verdict == "too few seeds"
    assert "a verdict needs at least 3" in result.explanation
    assert "the exact test can confirm one from 6 on" in result.explanation


def test_what_is_no_number_is_left_out() -> None:
    base = {0: 0.5, 1: 0.51, 2: 0.52, 3: 0.49}
    arm = {0: 0.7, 1: math.nan, 2: 0.73, 3: math.inf, 4: 0.9}
    result = compare_arms({"base": base, "arm": arm}, "base", "max")["arm"]
    assert result.mean.n == 3
    assert result.difference is not None
    assert result.difference.n == 2
    assert result.verdict == "too few seeds"


def test_words_say_the_figures_and_how_many_seeds_would_do() -> None:
    arm, other = _pair(5)
    values = {"base": dict(enumerate(other)), "arm": dict(enumerate(arm)), "same": dict(enumerate(other))}
    result = compare_arms(values, "base", "max")
    gap = result["arm"].difference
    assert gap is not None
    assert gap.effect is not None
    assert result["arm"].verdict == "no difference shown"
    needed = seeds_needed(gap.effect, 0.05 / 2)
    advice = f"about {needed} seeds are needed to detect a true difference as large as the observed one"
    assert advice in result["arm"].explanation
    assert result["same"].explanation == "No difference shown: all 5 seeds have the same values as base."
    wanted = compare_arms(values, "base", "max", margin=0.05)["arm"].explanation
    assert "to detect a difference of 0.05" in wanted
    higher = {s: v + 0.2 for s, v in values["base"].items()}
    shifted = compare_arms({"base": values["base"], "arm": higher}, "base", "max")
    assert "all 5 differences are equal (+0.2)" in shifted["arm"].explanation
    assert shifted["arm"].verdict == "no difference shown", "five equal differences: an exact p of 0.0625"
    assert "That test can show one from 6 seeds on" in shifted["arm"].explanation


def test_six_equal_differences_are_enough() -> None:
    base = {seed: 0.5 + 0.01 * seed for seed in range(6)}
    result = compare_arms({"base": base, "arm": {s: v - 0.1 for s, v in base.items()}}, "base", "min")["arm"]
    assert result.verdict == "better"
    assert result.difference is not None
    assert result.difference.holm_p == pytest.approx(2 / 64)


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


# -- simulated sweeps ----------------------------------------------------------------------------------


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
        made = corrected({str(k): Difference(n, float(mean[k]), t_p=float(p[k])) for k in range(len(p))})
        wrong += any(verdict.verdict(one, "max") in ("better", "worse") for one in made.values())
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


@pytest.mark.parametrize("n", [3, 5])
def test_the_whole_judgement_is_made_of_those_parts(n: int) -> None:
    """`compare_arms` on simulated sweeps: the same verdicts as its parts give."""
    figures = _sweeps(n, 120)
    by_hand = []
    for sweep in figures:
        values = {str(k): dict(enumerate(map(float, row))) for k, row in enumerate(sweep)}
        by_hand.append(any(one.verdict in ("better", "worse") for one in compare_arms(values, "0", "max").values()))
    assert np.mean(by_hand) == pytest.approx(_false_positives(figures))


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
