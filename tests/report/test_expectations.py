"""Expectations are parsed strictly and evaluated in the metric's direction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from blockyard.errors import UserError
from blockyard.report.stats.expectations import MARGIN, evaluate
from blockyard.sweep.spec import question
from blockyard.sweep.spec.expectation import Claim, parse

ARMS = ["a", "b", "c", "pre_norm-8e-3", "block=post_norm optimizer.lr=0.1"]


def _values(n: int = 5, **shifts: float) -> dict[str, dict[int, float | None]]:
    """Values around 0.9 with a standard deviation of 0.002 between paired seeds."""
    draw = np.random.default_rng(0)
    base = 0.9 + 0.01 * draw.normal(size=n)
    return {arm: dict(enumerate(base + shift + 0.002 * draw.normal(size=n))) for arm, shift in shifts.items()}


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("a > b", [Claim("a", ">", "b")]),
        ("a>b", [Claim("a", ">", "b")]),
        ("a < b", [Claim("b", ">", "a")]),
        ("a <= b", [Claim("b", ">=", "a")]),
        ("a >= b and  b ~ c", [Claim("a", ">=", "b"), Claim("b", "~", "c")]),
        ("a > b > c", [Claim("a", ">", "b"), Claim("b", ">", "c")]),
        ("pre_norm-8e-3 > a", [Claim("pre_norm-8e-3", ">", "a")]),
        ("block=post_norm optimizer.lr=0.1 >= a", [Claim("block=post_norm optimizer.lr=0.1", ">=", "a")]),
    ],
)
def test_comparisons_are_read(text: str, claims: list[Claim]) -> None:
    assert parse(text, ARMS) == claims


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "is not a comparison"),
        ("", "is not a comparison"),
        ("a >", "is not a comparison"),
        ("> b", "is not a comparison"),
        ("a > b and", "unknown arm 'b and'"),
        ("a == b", "is not a comparison"),
        ("a => b", "no"),
        ("a > d", r"unknown arm 'd'.*arms: a, b, c"),
        ("a > pre_norm-8e3", "did you mean pre_norm-8e-3"),
        ("a > a", "compares a with itself"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_what_works(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text, ARMS)


@pytest.mark.parametrize(
    "text",
    [
        "a > b",
        "a>=b",
        "a < b and b ~ c",
        "a > b > c",
        "a",
        "a >",
        "a => b",
        "a == b",
        "a > d",
        "a > a",
        "a > b and",
        "x",
    ],
)
def test_a_sweep_file_may_expect_what_can_be_judged(text: str) -> None:
    names = ["a", "b", "c"]
    content = {"claim": "c", "arms": {arm: [f"model.dim={8 * (n + 1)}"] for n, arm in enumerate(names)}, "expect": text}
    try:
        parse(text, names)
    except UserError:
        with pytest.raises(UserError, match="expect"):
            question.parse(content, name="q")
    else:
        assert question.parse(content, name="q").keys.expect == text


@pytest.mark.parametrize("direction", ["max", "min"])
def test_greater_is_better_whichever_way_that_is(direction: str) -> None:
    gain = 0.02 if direction == "max" else -0.02
    values = _values(a=gain, b=0.0)
    assert evaluate("a > b", values, direction).verdict == "supported"
    assert evaluate("b > a", values, direction).verdict == "contradicted"
    assert evaluate("b < a", values, direction).verdict == "supported"
    assert evaluate("b >= a", values, direction).verdict == "contradicted"
    assert evaluate("a >= b", values, direction).verdict == "supported"
    assert evaluate("a ~ b", values, direction).verdict == "contradicted"


def test_without_a_difference_nothing_greater_is_said() -> None:
    values = _values(a=0.0, b=0.0)
    result = evaluate("a > b", values, "max")
    assert result.verdict == "undecided"
    assert "no difference shown" in result.reason
    assert evaluate("a ~ b", values, "max").verdict == "supported"
    assert evaluate("a >= b", values, "max").verdict == "supported"
    assert evaluate("a ~ b", values, "max", margin=0.0005).verdict == "undecided"


def test_less_than_a_stated_margin_contradicts_better() -> None:
    """By one of two one-sided tests, just as it supports the opposite with `>=`; without a margin it stays open."""
    values = _values(a=0.0, b=0.0)
    gaps = np.array(list(values["a"].values())) - np.array(list(values["b"].values()))
    verdicts = set()
    for margin in np.linspace(0.0005, 0.006, 12):
        below = stats.ttest_1samp(gaps, margin, alternative="less").pvalue < 0.05
        verdict = evaluate("a > b", values, "max", margin=margin).verdict
        assert verdict == ("contradicted" if below else "undecided")
        assert (evaluate("b >= a", values, "max", margin=margin).verdict == "supported") == below
        verdicts.add(verdict)
    assert len(verdicts) == 2
    assert evaluate("a > b", values, "max", margin=0.006).sense == "not shown to matter: smaller than 0.006"


def test_a_gain_that_is_sure_and_less_than_the_margin_is_not_what_was_claimed() -> None:
    """The opposite with `>=` is supported, so both cannot be; without a margin any sure gain supports it."""
    values = _values(a=0.004, b=0.0)
    assert evaluate("a > b", values, "max").verdict == "supported"
    small = evaluate("a > b", values, "max", margin=0.02)
    assert small.verdict == "contradicted"
    assert small.judged == "contradicted (not shown to matter: smaller than 0.02)"
    assert "not shown to matter: smaller than 0.02 (90 % interval" in small.reason
    assert evaluate("b >= a", values, "max", margin=0.02).verdict == "supported"
    assert evaluate("b > a", values, "max", margin=0.02).judged == "contradicted (the opposite is shown)"


@pytest.mark.parametrize("direction", ["max", "min"])
def test_the_interval_that_is_held_against_the_margin_is_shown(direction: str) -> None:
    values = _values(a=0.0, b=0.0)
    gaps = np.array(list(values["a"].values())) - np.array(list(values["b"].values()))
    low, high = stats.t.interval(0.9, 4, gaps.mean(), stats.sem(gaps))
    for text in ("a > b", "a >= b", "a ~ b"):
        reason = evaluate(text, values, direction, margin=0.0125).reason
        assert reason.endswith(f"(90 % interval {low:.3g} to {high:.3g})")
        assert "0.0125" in reason


def test_alike_means_two_one_sided_tests() -> None:
    values = _values(a=0.004, b=0.0)
    ours, theirs = (np.array(list(values[arm].values())) for arm in "ab")
    p_at = {m: ttost_paired(ours, theirs, -m, m)[0] for m in np.linspace(0.002, 0.012, 21)}
    for margin, p in p_at.items():
        beyond = stats.ttest_1samp(ours - theirs, margin, alternative="greater").pvalue
        expected = "supported" if p < 0.05 else "contradicted" if beyond < 0.05 else "undecided"
        assert evaluate("a ~ b", values, "max", margin=margin).verdict == expected
    assert len({evaluate("a ~ b", values, "max", margin=m).verdict for m in p_at}) == 3
    default = evaluate("a ~ b", values, "max")
    assert f"{MARGIN * theirs.mean():.2g} (1% of the mean of b)" in default.reason


def test_the_reason_holds_the_figures_of_that_pair() -> None:
    values = _values(a=0.02, b=0.0, c=0.3)
    reason = evaluate("a > b", values, "max").reason
    test = stats.ttest_rel(list(values["a"].values()), list(values["b"].values()))
    assert f"{np.mean(list(values['a'].values())) - np.mean(list(values['b'].values())):+.3g}" in reason
    assert f"p = {test.pvalue:.2g}" in reason or "p < 0.0001" in reason
    assert "5 seeds" in reason


def test_a_chain_is_supported_only_as_a_whole_and_corrected() -> None:
    values = _values(a=0.02, b=0.0, c=0.0)
    both = evaluate("a > b and b > c", values, "max")
    assert both.verdict == "undecided"
    assert both.reason.startswith("supported: a against b")
    assert "; undecided: b against c" in both.reason
    assert evaluate("a > b and c > a", values, "max").verdict == "contradicted"
    base = {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.892}
    gaps = 0.00534, 0.01244, 0.01844, 0.02534
    shift = {"a": {seed: base[seed] + gap for seed, gap in enumerate(gaps)}, "b": base, "c": base}
    assert 0.025 < stats.ttest_1samp(gaps, 0).pvalue < 0.05
    assert evaluate("a > b", shift, "max").verdict == "supported"
    assert evaluate("a > b and c > b", shift, "max").reason.startswith("undecided: a against b")


def test_clauses_about_the_margin_take_nothing_of_the_error_of_the_others() -> None:
    base = {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.892}
    gaps = 0.00534, 0.01244, 0.01844, 0.02534
    shift = {"a": {seed: base[seed] + gap for seed, gap in enumerate(gaps)}, "b": base, "c": base}
    alone = evaluate("a > b", shift, "max")
    joined = evaluate("a > b and b ~ c and c >= b", shift, "max")
    assert joined.verdict == "supported"
    assert joined.clauses[0].reason == alone.reason


def test_no_arm_can_be_better_by_more_than_the_room() -> None:
    """Three times fewer errors, on every seed, and a margin above the errors that there are."""
    values = {"b": {s: 0.003 + 0.0002 * (s % 3) for s in range(6)}, "a": {s: 0.001 + 0.0001 * s for s in range(6)}}
    result = evaluate("a > b", values, "min", margin=0.01, end=0.0)
    assert result.verdict == "undecided"
    assert result.sense == "no arm can be better by 0.01: b is at 0.0032 of a metric that ends at 0"
    assert evaluate("a > b", values, "min", margin=0.01).verdict == "contradicted"
    assert evaluate("b > a", values, "min", margin=0.01, end=0.0).judged == "contradicted (the opposite is shown)"
    assert evaluate("a > b", values, "min", margin=0.001, end=0.0).verdict == "supported"


def test_supported_says_what_the_interval_clears() -> None:
    values = _values(a=0.02, b=0.0)
    assert evaluate("a > b", values, "max").judged == "supported"
    assert evaluate("a > b", values, "max", margin=0.01).judged == "supported (beyond the margin 0.01)"
    near = evaluate("a > b", values, "max", margin=0.02)
    assert near.judged == "supported (beyond zero, not beyond the margin 0.02)"


def test_a_whole_of_clauses_that_are_true_is_contradicted_in_5_percent() -> None:
    """Eight clauses at the margin: without the correction, one of five such sweeps would be contradicted."""
    draw = np.random.default_rng(0)
    text = " and ".join(f"a{number} ~ b" for number in range(8))
    wrong = 0
    alone = 0
    for _ in range(60):
        noise = draw.normal(scale=0.5**0.5, size=(9, 8))
        values = {f"a{number}": dict(enumerate(100.99 + noise[number])) for number in range(8)}
        values["b"] = dict(enumerate(100 + noise[8]))
        wrong += evaluate(text, values, "max", margin=1.0).verdict == "contradicted"
        alone += any(
            stats.ttest_1samp(noise[number] - noise[8] + 0.99, 1.0, alternative="greater").pvalue < 0.05
            for number in range(8)
        )
    assert alone / 60 > 0.12
    assert wrong / 60 <= 0.1


def test_too_few_common_seeds_leave_it_undecided() -> None:
    values = _values(a=0.2, b=0.0)
    values["a"] = {seed + 3: value for seed, value in values["a"].items()}
    result = evaluate("a > b", values, "max")
    assert result.verdict == "undecided"
    assert "2 common seeds, at least 3" in result.reason
    assert evaluate("a > b", {"a": {}, "b": {0: 1.0}}, "max").verdict == "undecided"


def test_equal_figures_are_alike_equal_differences_say_nothing() -> None:
    base = {0: 0.9, 1: 0.91, 2: 0.92}
    assert evaluate("a ~ b", {"a": dict(base), "b": base}, "max").verdict == "supported"
    assert evaluate("a >= b", {"a": dict(base), "b": base}, "max").verdict == "supported"
    assert evaluate("a > b", {"a": dict(base), "b": base}, "max").verdict == "undecided"
    shifted = {seed: value + 0.001 for seed, value in base.items()}
    assert evaluate("a ~ b", {"a": shifted, "b": base}, "max").verdict == "undecided"


@pytest.mark.parametrize("sign", ["~", ">="])
def test_as_many_seeds_ahead_as_behind_are_not_the_same_values(sign: str) -> None:
    ahead, level = [1.0, 1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0]
    values = {"a": dict(enumerate(ahead)), "b": dict(enumerate(level))}
    result = evaluate(f"a {sign} b", values, "max", signs=True, margin=0.1)
    assert result.verdict == "undecided"
    assert "same values" not in result.reason
    assert evaluate(f"a {sign} b", {"a": values["a"], "b": values["a"]}, "max", signs=True).verdict == "supported"


def test_a_mean_of_nothing_gives_no_margin_and_the_sweep_can_say_one() -> None:
    zero = dict.fromkeys(range(4), 0.0)
    near = {0: 0.001, 1: -0.002, 2: 0.001, 3: 0.0005}
    for text in ("a ~ b", "a >= b"):
        result = evaluate(text, {"a": near, "b": zero}, "max")
        assert result.verdict == "undecided"
        assert (
            "the mean of b is 0, so 1% of it is not a margin; set `margin: NUMBER` in the sweep file" in result.reason
        )
        result = evaluate(text, {"a": near, "b": zero}, "max", margin=0.01)
        assert result.verdict == "supported"
        assert "0.01 or more" in result.reason
        assert evaluate(text, {"a": zero, "b": zero}, "max").verdict == "supported"
    far = {seed: 1.0 + 0.01 * seed for seed in range(4)}
    assert evaluate("a ~ b", {"a": far, "b": zero}, "max").verdict == "contradicted"


def test_what_is_no_number_is_no_seed() -> None:
    values = _values(n=4, a=0.1, b=0.0)
    values["a"] |= {0: None, 1: None}
    assert "2 common seeds" in evaluate("a > b", values, "max").reason
