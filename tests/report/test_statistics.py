"""Each statistic of a comparison against scipy, statsmodels or an independent formula."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from blockyard.report.stats import verdict
from blockyard.report.stats.expectations import evaluate
from blockyard.report.stats.intervals import mean_of
from blockyard.report.stats.paired import Difference, difference, effect, paired_difference, permutation_p, smallest_p
from blockyard.report.stats.verdict import compare_arms, corrected, seeds_needed

SEEDS = (3, 5, 10)


def _pair(n: int, shift: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(n)
    block = draw.normal(size=n)
    return block + draw.normal(shift, 0.5, n), block + draw.normal(0, 0.5, n)


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


def test_no_sampled_p_is_zero() -> None:
    """The observed signs are one of the flips (Phipson and Smyth 2010), also where no drawn one is as extreme."""
    assert permutation_p(np.arange(1.0, 41.0), 40.0) == (pytest.approx(1 / 100_000), True)


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


@pytest.mark.full
def test_p_is_corrected_over_the_arms_that_can_have_a_verdict() -> None:
    ps = {"a": 0.01, "b": 0.04, "c": 0.03}
    result = {name: Difference(5, 0.1, t_p=p) for name, p in ps.items()} | {"few": Difference(2, 0.1, t_p=1e-9)}
    results = corrected(result)
    wanted = multipletests(list(ps.values()), method="holm")[1]
    assert [results[name].holm_p for name in ps] == pytest.approx(list(wanted))
    assert results["few"].holm_p is None
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


def test_what_is_no_number_has_no_mean_but_a_rank() -> None:
    base = {0: 0.5, 1: 0.51, 2: 0.52, 3: 0.49}
    arm = {0: 0.7, 1: math.nan, 2: 0.73, 3: math.inf, 4: 0.9}
    result = compare_arms({"base": base, "arm": arm}, "base", "max")["arm"]
    assert result.mean.n == 3
    assert result.difference is not None
    assert result.difference.n == 4
    assert result.difference.signs == (2, 2, 0)
    assert result.verdict == "no difference shown"
    assert "2 of 5 runs of arm ended with a loss that is not finite" in result.explanation


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


def test_a_mean_of_zero_with_an_interval_is_not_called_equal_values() -> None:
    """Over samples, as many are better as are worse."""
    even = Difference(5, 0.0, interval=(-0.34, 0.34), t_p=1.0, holm_p=1.0, error=0.17, free=358.0, over="samples")
    assert "same values" not in verdict.explain(even, "max", "a", 1)
    values: dict[str, dict[int, float]] = {"a": dict.fromkeys(range(5), 0.9), "b": dict.fromkeys(range(5), 0.9)}
    assert evaluate("b ~ a", values, "max", margin=0.01, differ=lambda *_: even).verdict == "undecided"


def test_equal_differences_over_samples_are_undecided_and_not_too_few() -> None:
    equal = Difference(5, 0.2, over="samples")
    assert verdict.verdict(equal, "max") == verdict.UNDECIDED
    assert "all differences to a are equal (+0.2)" in verdict.explain(equal, "max", "a", 1)
    assert verdict.verdict(replace(equal, n=2), "max") == verdict.TOO_FEW


def test_six_equal_differences_are_enough() -> None:
    base = {seed: 0.5 + 0.01 * seed for seed in range(6)}
    result = compare_arms({"base": base, "arm": {s: v - 0.1 for s, v in base.items()}}, "base", "min")["arm"]
    assert result.verdict == "better"
    assert result.difference is not None
    assert result.difference.holm_p == pytest.approx(2 / 64)
