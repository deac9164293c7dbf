"""Outcomes of whole runs: rates of success, and steps to a value, compared by signs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from blockyard.atomic_files import read_json, write_json
from blockyard.report.comparison import Comparison, compare
from blockyard.report.render.markdown import markdown
from blockyard.report.stats.paired import sign_difference
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.question import BadQuestionError, parse
from blockyard.sweep.spec.threshold import Kind, Threshold, of_metric, threshold
from blockyard.sweep.stopping.evidence import log_sign_e
from tests.report.report_runs import norms_sweep
from tests.support.every import every

FILE = "claim: x\nbase: [experiment=vit_digits]\narms: {a: [block=pre_norm], b: [block=post_norm]}\n"


def test_a_threshold_is_read_and_named() -> None:
    one = threshold("success", "test/exact >= 0.9")
    assert one == Threshold("success", "test/exact", ">=", 0.9)
    assert str(one) == "success(test/exact >= 0.9)"
    assert of_metric(str(one)) == one
    assert of_metric("test/exact") is None
    less = threshold("steps_to", "val/loss <= 1e-2")
    assert less is not None
    assert every(less.reached(value) == (value <= 0.01) for value in (0.0, 0.01, 0.02))


def test_a_value_at_the_threshold_reaches_it_in_single_precision() -> None:
    """450 of 500 is 0.8999999761581421 there; 449 is not there yet."""
    for sign, share, other in ((">=", 0.9, 0.898), ("<=", 0.6, 0.602)):
        one = Threshold("success", "test/exact", sign, share)  # type: ignore[arg-type]
        assert one.reached(float(np.float32(share)))
        assert not one.reached(float(np.float32(other)))


@pytest.mark.parametrize("value", ["0.9999999", "0.1234567", "1e-12", "0.30000000000000004"])
def test_every_digit_of_a_threshold_is_in_its_name(value: str) -> None:
    one = threshold("steps_to", f"val/loss <= {value}")
    assert one is not None
    assert one.value == float(value)
    assert of_metric(str(one)) == one


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"success": "exact >= 0.9"},
            "success: expected a metric and the value that it must reach",
        ),
        (
            {"success": "test/exact > 0.9"},
            "success: expected a metric and the value that it must reach",
        ),
        ({"steps_to": "test/accuracy >= 0.9"}, "such as val/accuracy >= 0.9, not"),
        ({"flops_to": "test/accuracy >= 0.9"}, "such as val/accuracy >= 0.9, not"),
        ({"steps_to": "val/loss <= 1", "seconds_to": "val/loss <= 1"}, "steps_to and seconds_to all say what is"),
        ({"success": 1}, "success: expected a metric and the value that it must reach"),
        ({"success": "test/exact >= 0.9", "metric": "test/loss"}, "success and metric all say what is compared"),
        ({"success": "test/exact >= 0.9", "expect": "a ~ b", "margin": 0.1}, "compared by signs"),
    ],
)
def test_what_is_no_threshold_is_said(keys: dict[str, Any], message: str) -> None:
    content = {"claim": "x", "arms": {"a": ["block=pre_norm"], "b": ["block=post_norm"]}, **keys}
    with pytest.raises(BadQuestionError, match=message):
        parse(content, name="x")


def test_the_plan_names_what_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "solved.yaml"
    file.write_text(FILE + "success: test/accuracy >= 0.9\n")
    metric = make_plan(file, outputs=str(tmp_path)).facts["metric"]
    assert metric == named("success(test/accuracy >= 0.9)", "val/accuracy", "max", "max")
    for text, expected in {
        "steps_to: val/loss <= 0.5": named("steps_to(val/loss <= 0.5)", "val/loss", "min", "min"),
        "steps_to: val/accuracy >= 0.5": named("steps_to(val/accuracy >= 0.5)", "val/accuracy", "min", "max"),
        "seconds_to: val/loss <= 0.5": named("seconds_to(val/loss <= 0.5)", "val/loss", "min", "min"),
        "success: test/loss <= 0.5": named("success(test/loss <= 0.5)", "val/loss", "max", "min"),
    }.items():
        file.write_text(f"{FILE}{text}\n")
        assert make_plan(file, outputs=str(tmp_path)).facts["metric"] == expected
    file.write_text(FILE + "success: test/nothing >= 0.9\n")
    with pytest.raises(BadQuestionError, match="test/nothing is not measured"):
        make_plan(file, outputs=str(tmp_path))


def named(name: str, validation: str, direction: str, chooses: str) -> dict[str, str]:
    return {"name": name, "validation": validation, "direction": direction, "validation_direction": chooses}


def test_the_steps_are_those_of_the_first_evaluation_that_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss,val/loss\n10,2.0,1.0\n20,1.0,\n30,0.9,0.4\n40,0.8,0.6\n")
    runs: dict[str, tuple[dict[str, float], Path]] = {"a": ({}, tmp_path), "none": ({}, tmp_path / "none")}
    assert Threshold("steps_to", "val/loss", "<=", 0.5).outcomes(runs) == {"a": 30}
    assert Threshold("steps_to", "val/other", "<=", 0.1).outcomes(runs) == {}


@pytest.mark.parametrize(
    ("kind", "reached", "never"),
    [
        ("steps_to", {"fast": 20, "slow": 30}, 41),
        ("seconds_to", {"fast": 9.5, "slow": 3.0}, 10.5),  # the other order than that of the steps
        ("tokens_to", {"fast": 320, "slow": 480}, 641),
        ("flops_to", {"fast": 20 * 7.0, "slow": 30 * 2.0}, 40 * 7.0 + 1),  # samples times FLOPs of one
    ],
)
def test_a_target_is_counted_in_each_unit(tmp_path: Path, kind: Kind, reached: dict[str, float], never: float) -> None:
    """The length at the first evaluation that reaches it; who never gets there comes after the longest run."""
    header = "step,samples,tokens,seconds,val/loss\n"
    tables = {
        "fast": "10,10,160,4.5,1.0\n20,20,320,9.5,0.5\n",
        "slow": "10,10,160,1.0,1.0\n20,20,320,2.0,0.9\n30,30,480,3.0,0.4\n",
        "never": "10,10,160,1.0,1.0\n40,40,640,4.0,0.9\n",
    }
    runs: dict[str, tuple[dict[str, float], Path]] = {}
    for name, text in tables.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(header + text)
        runs[name] = {"flops_per_sample": 2.0 if name == "slow" else 7.0}, tmp_path / name
    outcomes = Threshold(kind, "val/loss", "<=", 0.5).outcomes(runs, ["diverged"])
    assert outcomes == {**reached, "never": never, "diverged": never}


def test_a_run_that_has_not_recorded_its_length_has_no_outcome(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,val/loss\n10,0.4\n")
    runs: dict[str, tuple[dict[str, float], Path]] = {"old": ({}, tmp_path)}
    for kind in ("seconds_to", "tokens_to", "flops_to"):
        assert Threshold(kind, "val/loss", "<=", 0.5).outcomes(runs) == {}  # type: ignore[arg-type]


def test_very_many_flops_are_still_fewer_than_those_of_a_run_that_never_gets_there(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,samples,val/loss\n10,1000,0.4\n")
    runs: dict[str, tuple[dict[str, float], Path]] = {"large": ({"flops_per_sample": 1e18}, tmp_path)}
    outcomes = Threshold("flops_to", "val/loss", "<=", 0.5).outcomes(runs, ["diverged"])
    assert outcomes["diverged"] > outcomes["large"] == 1e21


def test_a_run_that_never_gets_there_comes_after_every_run_that_does(tmp_path: Path) -> None:
    """Also where it was stopped before the others got there."""
    lines = {"stopped": "10,1.0", "slow": "10,1.0\n60,0.4", "never": "10,1.0\n50,0.9"}
    runs: dict[str, tuple[dict[str, float], Path]] = {}
    for name, text in lines.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(f"step,val/loss\n{text}\n")
        runs[name] = {}, tmp_path / name
    outcomes = Threshold("steps_to", "val/loss", "<=", 0.5).outcomes(runs)
    assert outcomes == {"stopped": 61, "slow": 60, "never": 61}


def test_signs_are_mcnemars_exact_test() -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    first = dict(enumerate([1.0, 1, 1, 1, 1, 1, 1, 0, 0, 1]))
    second = dict(enumerate([0.0, 0, 0, 0, 0, 0, 1, 0, 1, 0]))
    gap = sign_difference(first, second, "max")
    assert gap.signs == (7, 1, 2)
    assert gap.permutation_p == pytest.approx(mcnemar([[1, 7], [1, 1]], exact=True).pvalue)
    assert sign_difference(first, second, "min").signs == (1, 7, 2)


def test_signs_are_the_log_rank_test_with_a_stratum_for_each_seed() -> None:
    """Each pair adds 1/2 or -1/2 to observed minus expected, and 1/4 to the variance."""
    gap = sign_difference({0: 30, 1: 20, 2: 40, 3: 10}, {0: 50, 1: 60, 2: 70, 3: 5}, "min")
    assert gap.signs == (3, 1, 0)
    ahead, behind, _ = gap.signs
    z = (0.5 * ahead - 0.5 * behind) / math.sqrt(0.25 * (ahead + behind))
    exact = stats.binomtest(ahead, ahead + behind).pvalue
    assert gap.permutation_p == pytest.approx(exact)
    assert 2 * stats.norm.sf(z) < exact  # the normal approximation of four pairs is too small


SOLVED = {
    "post": [0.1, 0.2, 0.1, 0.3, 0.95, 0.2, 0.1, 0.2],
    "pre": [0.95, 0.97, 0.96, 0.99, 0.98, 0.97, 0.95, 0.96],
    "alibi": [0.1, 0.96, 0.2, 0.1, 0.1, 0.2, 0.2, 0.1],
}


def solved(folder: Path, **question: Any) -> Comparison:
    figures: dict[str, Any] = {arm: dict(enumerate(own)) for arm, own in SOLVED.items()}
    plan = norms_sweep(folder, values=figures, question={"success": "test/accuracy >= 0.9", "metric": None, **question})
    plan.facts["metric"] = {
        "name": "success(test/accuracy >= 0.9)",
        "validation": "val/accuracy",
        "direction": "max",
    }
    plan.save()
    return compare(plan, changes=False)


def test_rates_are_compared_by_an_exact_test(tmp_path: Path) -> None:
    result = solved(tmp_path, expect="pre > post and alibi > post")
    pre, alibi = result.arm("pre"), result.arm("alibi")
    assert (pre.mean, result.arm("post").mean) == (1.0, 0.125)
    low, high = pre.interval or (0, 0)
    assert (low, high) == pytest.approx((0.025 ** (1 / 8), 1.0))  # Clopper and Pearson's for all of eight
    assert (pre.verdict, alibi.verdict) == ("better", "undecided")
    assert "ahead on 7 seeds, behind on 0, level on 1" in pre.words
    gap = pre.difference
    assert gap is not None
    assert gap.permutation_p == pytest.approx(2 / 2**7)
    assert gap.t_p is None
    assert gap.holm_p == pytest.approx(4 / 2**7)
    assert result.expect is not None
    assert [each.verdict for each in result.expect.clauses] == ["supported", "undecided"]
    assert "McNemar" in markdown(result)


def test_rates_of_a_sweep_that_stops_when_it_is_decided(tmp_path: Path) -> None:
    result = solved(tmp_path, until={"first": 3, "most": 8})
    pre = result.arm("pre")
    gap = pre.difference
    assert gap is not None
    assert gap.e == pytest.approx(math.exp(log_sign_e([1.0] * 4 + [0.0] + [1.0] * 3, 1.0)))
    assert pre.verdict == "undecided"  # e = 27, of the 40 that two comparisons take
    assert "ahead on 7 seeds" in pre.words
    alone = solved(tmp_path / "alone", until={"first": 3, "most": 8}, expect="pre > post")
    assert alone.expect is not None
    assert alone.expect.verdict == "supported"


@pytest.mark.parametrize("until", [None, {"first": 3, "most": 8}])
def test_a_run_that_diverged_has_not_solved_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: dict[str, int] | None
) -> None:
    """One that failed for another reason says nothing."""
    lost = {0: "NotFiniteError: the loss is nan at step 3", 1: "RuntimeError: out of memory"}
    monkeypatch.setitem(SOLVED, "post", [0.95] * 8)
    before = solved(tmp_path / "whole")
    assert before.arm("post").mean == 1.0
    plan = SweepPlan.load(tmp_path / "whole" / "sweeps" / before.title)
    for seed, reason in lost.items():
        (cell,) = [cell for cell in plan.cells if cell.seed == seed and plan.variants[cell.variant].arm == "post"]
        folder = plan.path(cell)
        (folder / "summary.json").unlink()
        status = read_json(folder / "status.json")
        write_json(folder / "status.json", {**status, "state": "failed", "reason": reason, "exit_code": 1})
    plan.question["until"] = until
    result = compare(plan, changes=False)
    assert result.arm("post").n == 7
    assert result.arm("post").mean == pytest.approx(6 / 7)


def test_a_run_that_diverged_never_gets_there(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,val/loss\n10,1.0\n60,0.4\n")
    runs: dict[str, tuple[dict[str, float], Path]] = {"slow": ({}, tmp_path)}
    assert Threshold("steps_to", "val/loss", "<=", 0.5).outcomes(runs, ["gone"]) == {"slow": 60, "gone": 61}
    rates: dict[str, tuple[dict[str, float], Path]] = {"one": ({"test/exact": 0.95}, tmp_path)}
    assert Threshold("success", "test/exact", ">=", 0.9).outcomes(rates, ["gone"]) == {"one": 1.0, "gone": 0.0}
