"""The group-sequential boundary of the t test: against published constants, simulated t tests, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from blockyard.sweep.stopping import boundary
from blockyard.sweep.stopping.decisions import ArmComparison, judge
from blockyard.sweep.stopping.forecast import PossibleEnds, beyond_limit, seeds_to_decide
from blockyard.sweep.stopping.rule import StoppingRule

# Two-sided boundaries at 5 % for K = 2 to 10 looks with a known variance: C (k / K)^(D - 1/2). Pocock 1977 (D = 1/2),
# O'Brien and Fleming 1979 (0), Wang and Tsiatis 1987 (1/4); Jennison and Turnbull 2000, tables 2.1, 2.3 and 2.9.
PUBLISHED = {
    0.5: [2.178, 2.289, 2.361, 2.413, 2.453, 2.485, 2.512, 2.535, 2.555],
    0.25: [2.038, 2.083, 2.113, 2.136, 2.154, 2.168, 2.180, 2.190, 2.199],
    0.0: [1.977, 2.004, 2.024, 2.040, 2.053, 2.063, 2.072, 2.080, 2.087],
}
# Lan and DeMets 1983, spending as O'Brien and Fleming, 2.5 % on each side: five equally spaced looks.
SPENDING = [4.877, 3.357, 2.680, 2.290, 2.031]
BOUNDARY = StoppingRule("boundary", 3, 20)


def normal_moves(n: int, middles: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The probabilities of |z| after one more difference of known variance."""
    mean = math.sqrt(n / (n + 1)) * middles[:, None]
    deviation = math.sqrt(1 / (n + 1))
    below = special.ndtr((edges - mean) / deviation) - special.ndtr((-edges - mean) / deviation)
    return np.diff(below, axis=1)


@pytest.mark.parametrize("power", PUBLISHED)
def test_with_a_known_variance_the_constants_are_the_published_ones(power: float) -> None:
    scores = np.arange(1.9, 2.7, 0.01)
    for looks, published in enumerate(PUBLISHED[power], start=2):
        shape = [(look / looks) ** (power - 0.5) for look in range(1, looks + 1)]
        levels = boundary.crossing(scores, shape, 1, normal_moves)
        assert np.interp(-0.05, -levels, scores) == pytest.approx(published, abs=0.0015)


def test_with_a_known_variance_a_spending_function_is_spent() -> None:
    for looks in range(1, 6):
        (spent,) = boundary.crossing(np.ones(1), SPENDING[:looks], 1, normal_moves)
        assert spent == pytest.approx(4 * stats.norm.sf(2.2414 / math.sqrt(looks / 5)), rel=0.01)


@pytest.mark.parametrize(("first", "most", "alpha"), [(3, 20, 0.05), (5, 20, 0.1), (5, 60, 0.05), (3, 3, 0.05)])
def test_t_tests_cross_it_as_often_as_the_level_says(first: int, most: int, alpha: float) -> None:
    """Simulate 40,000 sweeps without a difference; a standard error is 0.11 points at 5 %."""
    gaps = np.random.default_rng(0).normal(size=(40_000, most))
    n = np.arange(1, most + 1)
    mean = np.cumsum(gaps, 1) / n
    squares = np.cumsum(gaps**2, 1) - n * mean**2
    crossed = np.zeros(len(gaps), bool)
    for look in range(boundary.first_look(first, most), most + 1):
        t = mean[:, look - 1] / np.sqrt(squares[:, look - 1] / (look * (look - 1)))
        crossed |= np.abs(t) >= boundary.critical_t(look, alpha, first, most)
    error = math.sqrt(alpha * (1 - alpha) / len(gaps))
    assert crossed.mean() == pytest.approx(alpha, abs=3.5 * error)


@pytest.mark.parametrize("n", [3, 4, 12, 60])
def test_one_more_seed_leaves_the_distribution_of_a_normal_score_as_it_is(n: int) -> None:
    """z is standard normal after any number of seeds where nothing has stopped."""
    edges = np.concatenate([np.arange(0.0, 4.0, 0.02), [8.0]])
    masses = 2 * np.diff(special.ndtr(edges))
    middles = (edges[1:] + edges[:-1]) / 2
    moved = masses @ boundary.student_moves(n, middles, edges)
    assert np.cumsum(moved) == pytest.approx(np.cumsum(masses), abs=3e-4)


def test_two_looks_are_as_dependent_as_those_of_t_tests() -> None:
    gaps = np.random.default_rng(1).normal(size=(400_000, 5))
    ts = [stats.ttest_1samp(gaps[:, :n], 0, axis=1).statistic for n in (4, 5)]
    before, after = (np.abs(special.ndtri(special.stdtr(n - 1, t))) for n, t in zip((4, 5), ts, strict=True))
    both = ((before > 1.5) & (after > 1.8)).mean()
    first, second, either = (
        boundary.crossing(np.ones(1), shape, 4, boundary.student_moves)[0] for shape in ([1.5], [8.0, 1.8], [1.5, 1.8])
    )
    assert first + second - either == pytest.approx(both, abs=5 * math.sqrt(both / len(gaps)))


def test_one_look_is_the_t_test() -> None:
    assert boundary.critical_t(3, 0.05, 3, 3) == pytest.approx(stats.t.isf(0.025, 2), rel=2e-3)
    (log_p,) = boundary.look_log_ps([2.5], [3], 3, 3)
    assert math.exp(log_p) == pytest.approx(2 * stats.t.sf(2.5, 2), rel=2e-3)


def test_the_p_of_a_look_is_the_level_of_the_boundary_through_it() -> None:
    for n, alpha in ((4, 0.05), (9, 0.01), (20, 0.2)):
        (log_p,) = boundary.look_log_ps([-boundary.critical_t(n, alpha, 3, 20)], [n], 3, 20)
        assert math.exp(log_p) == pytest.approx(alpha, rel=1e-6)


def test_it_is_constant_at_first_and_then_that_of_o_brien_and_fleming() -> None:
    def score(n: int) -> float:
        return float(-special.ndtri(special.stdtr(n - 1, -boundary.critical_t(n, 0.05, 3, 20))))

    assert score(4) == pytest.approx(score(11))
    assert score(11) == pytest.approx(1.3 * score(20))
    assert score(16) == pytest.approx(math.sqrt(20 / 16) * score(20))


def test_there_is_no_look_before_the_first_seeds() -> None:
    """Four equal signs in the first two to four seeds decided a question that had asked for five (`first: 5`)."""
    gaps = [0.88, 0.87, 0.86, 0.91, -0.89]
    values = {"base": dict.fromkeys(range(5), 0.0), "a": dict(enumerate(gaps))}
    clause = ArmComparison("a", (("a",), ("base",)))
    for by in ("boundary", "e-values"):
        (one,) = judge([clause], values, range(5), "max", 0.1, rule=StoppingRule(by, 5, 20))  # type: ignore[arg-type]
        assert one.outcome is None
        assert one.evidence[:4] == (0.0,) * 4
        assert not one.withdrawn
    (earlier,) = judge([clause], values, range(5), "max", None)
    assert (earlier.outcome, earlier.at) == ("better", 4)


def test_an_interval_that_leaves_out_its_own_mean_is_withdrawn() -> None:
    gaps = [0.88, 0.87, 0.86, 0.91, -0.89]
    values = {"base": dict.fromkeys(range(5), 0.0), "a": dict(enumerate(gaps))}
    clause = ArmComparison("a", (("a",), ("base",)))
    (one,) = judge([clause], values, range(5), "max", None, rule=StoppingRule("e-values", 3, 20))
    low, high = one.intervals[-1]
    assert 0.8 < low < high < 1.0
    assert one.withdrawn
    assert one.interval == (-math.inf, math.inf)


def test_the_interval_leaves_out_what_the_boundary_rejects() -> None:
    gaps = list(np.random.default_rng(2).normal(0.7, 1.0, size=12))
    low, high = BOUNDARY.intervals(gaps, 1.0, 0.05)[-1]
    for mean in (low, high):
        shifted = [gap - mean for gap in gaps]
        assert BOUNDARY.evidence(shifted, 1.0)[-1] == pytest.approx(math.log(20), rel=1e-4)


def test_clauses_about_the_margin_take_nothing_from_those_about_zero() -> None:
    """A clause that is held against the margin leaves all of the 5 % to the other one."""
    gaps = [1.0, 0.4, 1.3, 0.6, 0.9, 1.2]
    values = {"base": dict.fromkeys(range(6), 0.0), "a": dict(enumerate(gaps)), "b": dict(enumerate(gaps[::-1]))}
    better = ArmComparison("a > base", (("a",), ("base",)), ">")
    close = ArmComparison("b ~ base", (("b",), ("base",)), "~")
    alone, _ = judge([better, close], values, range(6), "max", 0.01, rule=BOUNDARY)
    assert alone.holm_p == pytest.approx(alone.p)
    shared, _ = judge([better, close], values, range(6), "max", 0.01)  # the rule of an earlier release
    assert shared.holm_p == pytest.approx(2 * shared.p)


def test_a_forecast_is_of_the_seeds_at_which_the_boundary_is_crossed() -> None:
    n = seeds_to_decide(BOUNDARY, 1.0, 0.05)
    assert n is not None
    t = [math.sqrt(count) for count in (n - 1, n)]
    assert t[0] < boundary.critical_t(n - 1, 0.05, 3, 20)
    assert t[1] >= boundary.critical_t(n, 0.05, 3, 20)
    beyond = seeds_to_decide(BOUNDARY, 0.3, 0.05)
    assert beyond is not None
    assert 50 < beyond < 80


def test_only_what_is_far_from_any_end_is_beyond_the_limit() -> None:
    noise = [0.4, -0.5, 0.6, -0.4, 0.5, -0.6, 0.5, -0.5, 0.4, -0.4]
    ends = PossibleEnds(BOUNDARY, ">", None, 0.05, 0.1)
    assert beyond_limit(ends, noise)
    assert not beyond_limit(ends, [gap + 0.3 for gap in noise])
    # With a margin of that size, equality would be decided.
    assert not beyond_limit(PossibleEnds(BOUNDARY, ">", 1.0, 0.05, 0.1), noise)
