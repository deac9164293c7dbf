"""Runs that diverged count: an arm with such runs is not better, equal or not worse by the runs that are left."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from blockyard.report.comparison import compare
from blockyard.report.render.markdown import markdown
from blockyard.report.stats import sequential
from blockyard.report.stats.expectations import evaluate
from blockyard.report.stats.paired import sign_difference
from blockyard.report.stats.verdict import compare_arms
from blockyard.sweep.stopping.decisions import comparisons, judge
from tests.report.report_runs import grid, norms_sweep, sweep
from tests.support.every import every

NAN = math.nan
BASE = {seed: 0.90 + 0.001 * (seed % 3) for seed in range(10)}
HALF = {seed: NAN if seed % 2 else value + 0.02 + 0.001 * (seed % 4) for seed, value in BASE.items()}
LOST = "5 of 10 runs of a ended with a loss that is not finite"


@pytest.mark.parametrize("text", ["a > b", "a >= b", "a ~ b", "b ~ a"])
@pytest.mark.parametrize("margin", [None, 0.05])
def test_survivors_support_nothing(text: str, margin: float | None) -> None:
    survivors = {seed: value for seed, value in HALF.items() if math.isfinite(value)}
    if text == "a > b" and margin is None:
        assert evaluate(text, {"a": survivors, "b": BASE}, "max").verdict == "supported"
    result = evaluate(text, {"a": HALF, "b": BASE}, "max", margin=margin)
    assert result.verdict == "undecided"
    assert LOST in result.reason
    assert "ahead on 5 seeds, behind on 5" in result.reason


@pytest.mark.parametrize("direction", ["max", "min"])
def test_a_run_that_diverged_is_the_worst_in_either_direction(direction: str) -> None:
    never = dict.fromkeys(range(8), NAN)
    result = evaluate("b > a", {"a": never, "b": BASE}, direction)
    assert result.verdict == "supported"
    assert evaluate("a >= b", {"a": never, "b": BASE}, direction).verdict == "contradicted"
    gap = sign_difference(never, BASE, direction)
    assert gap.signs == (0, 8, 0)
    assert gap.permutation_p == pytest.approx(stats.binomtest(0, 8).pvalue)
    five = dict.fromkeys(range(5), NAN)
    assert evaluate("b > a", {"a": five, "b": BASE}, direction).verdict == "undecided"


@pytest.mark.parametrize("text", ["a ~ b", "a >= b", "a > b"])
def test_two_arms_that_diverge_are_not_the_same(text: str) -> None:
    never = dict.fromkeys(range(8), NAN)
    result = evaluate(text, {"a": never, "b": never}, "max", margin=0.1)
    assert result.verdict == "undecided"
    assert "level on 8" in result.reason


def test_one_loss_of_ten_is_a_loss_and_not_a_veto() -> None:
    once = {seed: NAN if seed == 4 else value + 0.02 for seed, value in BASE.items()}
    result = evaluate("a > b", {"a": once, "b": BASE}, "max")
    assert result.verdict == "supported"
    assert "ahead on 9 seeds, behind on 1, level on 0, p = 0.021" in result.reason
    assert "1 of 10 runs of a ended with a loss that is not finite" in result.reason


def test_a_difference_of_differences_has_no_order() -> None:
    values = {"a": HALF, "b": BASE, "c": BASE, "d": {seed: value - 0.01 for seed, value in BASE.items()}}
    result = evaluate("(a - b) > (c - d)", values, "max")
    assert result.verdict == "undecided"
    assert LOST in result.reason


def test_a_row_says_it_and_is_not_better() -> None:
    row = compare_arms({"b": BASE, "a": HALF}, "b", "max")["a"]
    assert row.verdict == "no difference shown"
    assert LOST in row.explanation
    assert row.difference is not None
    assert row.difference.interval is None


VALUES: dict[str, dict[int, float | str]] = {
    "post": {seed: 0.90 + 0.002 * (seed % 3) for seed in range(5)},
    "pre": {0: 0.95, 1: "diverged", 2: 0.953, 3: "diverged", 4: 0.951},
    "alibi": {0: 0.95, 1: "failed", 2: 0.953, 3: "failed", 4: 0.951},
}


def test_two_of_five_runs_that_diverged_leave_a_claim_undecided(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, values=VALUES, question={"expect": "pre > post"}))
    assert result.expect is not None
    assert result.expect.verdict == "undecided"
    lost = "2 of 5 runs of pre ended with a loss that is not finite"
    for text in (result.answer, result.expect.reason, result.arm("pre").words, markdown(result)):
        assert lost in text
    assert result.arm("pre").diverged == [1, 3]
    assert result.arm("alibi").diverged is None
    assert (result.arm("pre").pareto, result.arm("alibi").pareto) == (False, True)  # of equal means and costs
    json.dumps(result.as_dict(), allow_nan=False)


def test_runs_that_failed_for_another_reason_stay_missing(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, values=VALUES, question={"expect": "alibi > post"}))
    assert result.expect is not None
    assert result.expect.verdict == "supported"
    assert "3 seeds" in result.expect.reason
    assert "2 of 5 runs of pre ended with a loss that is not finite" in result.answer  # it is not asked, but told


def test_without_an_expectation_the_answer_says_it_too(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, values=VALUES))
    assert result.arm("pre").verdict == "no difference shown"
    assert result.arm("alibi").verdict == "better"
    assert "2 of 5 runs of pre ended with a loss that is not finite" in result.answer


def test_effects_of_a_grid_are_not_tested_by_survivors(tmp_path: Path) -> None:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "position": ["learned", "alibi"]})
    values: dict[str, dict[int, float | str]] = {
        arm: {seed: 0.9 + 0.02 * number + 0.003 * ((seed * 7 + number) % 5) for seed in range(6)}
        for number, arm in enumerate(arms)
    }
    values[next(iter(arms))][2] = "diverged"
    result = compare(sweep(tmp_path, arms, values, levels=levels, question={"kind": "grid"}))
    assert result.effects is not None
    assert every(test.holm_p is None for test in [*result.effects.main, *result.effects.interactions])
    assert "1 run ended with a loss that is not finite" in result.effects.formula


def looked(
    text: str, values: dict[str, dict[int, float]], margin: float | None = None
) -> tuple[str | None, int | None]:
    [one] = judge(comparisons(text, list(values), None), values, range(20), "max", margin)
    return one.verdict, one.at


def test_looks_count_them_too() -> None:
    base = {seed: 0.9 + 0.001 * (seed % 3) for seed in range(20)}
    better = {seed: value + 0.02 + 0.001 * (seed % 4) for seed, value in base.items()}
    assert looked("a > b", {"a": better, "b": base})[0] == "supported"
    half = {seed: NAN if seed % 2 == 0 else value for seed, value in better.items()}
    for text in ("a > b", "a >= b", "a ~ b"):
        assert looked(text, {"a": half, "b": base}, margin=0.05) == (None, None)
    never = dict.fromkeys(range(20), NAN)
    assert looked("a > b", {"a": never, "b": base}) == ("contradicted", 7)
    assert looked("a >= b", {"a": never, "b": base}, margin=0.05) == ("contradicted", 7)
    assert looked("a ~ b", {"a": never, "b": never}, margin=0.05) == (None, None)


def test_a_decision_of_earlier_seeds_stays() -> None:
    base = {seed: 0.9 + 0.001 * (seed % 3) for seed in range(20)}
    better = {seed: value + 0.02 + 0.001 * (seed % 4) for seed, value in base.items()}
    verdict, at = looked("a > b", {"a": better, "b": base})
    assert at is not None
    late = {seed: NAN if seed >= at else value for seed, value in better.items()}
    assert looked("a > b", {"a": late, "b": base}) == (verdict, at)


def test_the_words_of_looks_say_how_many() -> None:
    base = {seed: 0.9 + 0.001 * (seed % 3) for seed in range(10)}
    terms = sequential.Terms("max", 0.05, range(10))
    result = sequential.evaluate("a > b", {"a": HALF, "b": base}, terms, {})
    assert result.verdict == "undecided"
    assert LOST in result.reason
    row = sequential.compare_arms({"a": HALF, "b": base}, "b", terms)["a"]
    assert row.verdict == "undecided"
    assert LOST in row.explanation


@pytest.mark.sampled(400)
def test_the_error_of_order_holds_where_half_of_the_seeds_are_ahead() -> None:
    """Two arms of one distribution that diverge alike: each side is ahead on half of the seeds."""
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        runs = np.where(draw.random((2, 8)) < 0.3, NAN, draw.normal(size=(2, 8)))
        values = {arm: dict(enumerate(map(float, row))) for arm, row in zip("ab", runs, strict=True)}
        wrong += evaluate("a > b", values, "max").verdict != "undecided"
    assert wrong / 400 <= 0.05
