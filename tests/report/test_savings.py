"""The training that an arm takes to the value with which the baseline ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from blockyard.report.arms.savings import first_reach
from blockyard.report.comparison import Comparison, compare
from tests.report.report_runs import MEASURED, norms_sweep

LONG = 40  # rows of metrics.csv, of which every fourth has an evaluation


def compared(tmp_path: Path, *, points: int = LONG, metric: str | None = None, **more: Any) -> Comparison:
    return compare(norms_sweep(tmp_path, points=points, **more), metric=metric, changes=False)


@pytest.mark.parametrize("metric", ["test/accuracy", "test/loss"])  # of which more, and less, is better
def test_the_share_is_that_of_the_first_point_with_the_value(tmp_path: Path, metric: str) -> None:
    """Accuracies rise in straight lines from 0 to their end, so an arm is there after the quotient of both ends."""
    result = compared(tmp_path, metric=metric)
    (row, _) = result.savings
    assert (row.arm, row.against) == ("pre", "post")
    assert row.metric == metric.replace("test", "val")
    quotients = [MEASURED["post"][seed] / MEASURED["pre"][seed] for seed in range(4)]  # type: ignore[operator]
    for saved in (row.steps, row.seconds, row.flops):
        assert saved is not None
        assert list(saved.shares.values()) == pytest.approx(quotients, rel=1e-4)
        assert saved.share == pytest.approx(stats.gmean(quotients), rel=1e-4)
        logs = np.log(quotients)
        interval = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
        assert saved.interval == pytest.approx(tuple(np.exp(interval)), rel=1e-3)
        assert saved.never == 0


def test_the_answer_says_it_in_a_sentence(tmp_path: Path) -> None:
    result = compared(tmp_path, values=MEASURED | {"alibi": {0: 0.9, 1: 0.93, 2: 0.95, 3: 0.8}})
    assert (
        "Of the steps that post takes to its last val/accuracy, pre takes 96 % (95 % interval 96 to 97 %); alibi takes "
        "95 to 100 % on 3 of 4 seeds and never gets there on the others." in result.answer
    ), result.answer
    saved = {row["arm"]: row for row in result.as_dict()["savings"]}
    assert saved["alibi"]["steps"]["never"] == 1
    assert saved["alibi"]["steps"]["share"] is None
    assert None in saved["alibi"]["steps"]["shares"].values()


def test_an_arm_that_never_gets_there_is_said_to_be_so(tmp_path: Path) -> None:
    worse = {**MEASURED, "alibi": dict.fromkeys(range(4), 0.5)}
    result = compared(tmp_path, values=worse)
    assert result.answer.endswith("; alibi never gets there.")
    steps = result.savings[1].steps
    assert steps is not None
    assert (steps.never, steps.share, steps.interval) == (4, None, None)


def test_curves_of_few_evaluations_say_nothing(tmp_path: Path) -> None:
    result = compared(tmp_path, points=28)  # seven
    assert result.savings == []
    assert "that post takes to its last" not in result.answer


@pytest.mark.parametrize(("key", "shown"), [("max_seconds", "seconds"), ("max_flops", "FLOPs")])
def test_what_is_saved_is_counted_in_the_budget_that_the_arms_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, shown: str
) -> None:
    arms = {"post": ["block=post_norm", f"trainer.{key}=60"], "pre": ["block=pre_norm", f"trainer.{key}=60"]}
    monkeypatch.setattr("tests.report.report_runs.ARMS", arms)
    result = compared(tmp_path, values={arm: MEASURED[arm] for arm in arms})
    assert f"Of the {shown} that post takes to its last val/accuracy, pre takes 96 %" in result.answer


def test_costs_and_outcomes_have_no_curve_on_validation(tmp_path: Path) -> None:
    assert compared(tmp_path, metric="step_seconds").savings == []


def test_seeds_whose_number_follows_from_results_have_no_interval_of_students(tmp_path: Path) -> None:
    (row, _) = compared(tmp_path, question={"until": {"first": 3, "most": 4}}).savings
    assert row.steps is not None
    assert row.steps.share is not None
    assert row.steps.interval is None


def test_both_arms_count_until_they_first_have_the_value(tmp_path: Path) -> None:
    """A baseline that rises above its end and falls again took half of its steps for it, and not all of them."""
    values = {
        "post": [0.2, 0.3, 0.5, 0.9, 0.95, 0.95, 0.93, 0.9],
        "pre": [0.3, 0.9, 0.95, 0.95, 0.96, 0.96, 0.96, 0.96],
    }
    plan = norms_sweep(tmp_path, values={arm: MEASURED[arm] for arm in values})
    for cell in plan.cells:
        rising = values.get(plan.variants[cell.variant].arm, [])
        lines = [f"{10 * number},{value}" for number, value in enumerate(rising, start=1)]
        plan.path(cell).mkdir(parents=True, exist_ok=True)
        (plan.path(cell) / "metrics.csv").write_text("\n".join(["step,val/accuracy", *lines]) + "\n")
    (row,) = compare(plan, changes=False).savings
    assert (row.seconds, row.flops) == (None, None)
    assert row.steps is not None
    assert row.steps.shares == pytest.approx(dict.fromkeys("0123", 20 / 40))


def test_noise_saves_nothing() -> None:
    """Neither of two equal arms is faster; a share of the whole run would say that both are."""
    generator = np.random.default_rng(0)
    steps = np.arange(1, 31)
    expected = 1 - np.exp(-steps / 6)  # flat at the end, where noise decides when a value is reached
    shares, of_the_whole = [], []
    for _ in range(2_000):
        base, other = (expected + generator.normal(0, 0.02, 30) for _ in range(2))
        needed = first_reach(list(zip(steps, base, strict=True)), base[-1])
        reached = first_reach(list(zip(steps, other, strict=True)), base[-1])
        if needed and reached:
            shares.append(reached / needed)
            of_the_whole.append(reached / 30)
    assert stats.gmean(shares) == pytest.approx(1, abs=0.03)
    assert stats.gmean(of_the_whole) < 0.8


def test_between_evaluations_the_curve_is_a_line() -> None:
    points = [(10.0, 0.0), (20.0, 2.0), (30.0, 1.0), (40.0, 5.0)]
    assert [first_reach(points, target) for target in (0, 1, 2, 3, 5, 6)] == [10, 15, 20, 35, 40, None]
    for target in (0.3, 1.7, 4.2):  # by a search along the lines in small steps
        lengths = np.linspace(10, 40, 300_001)
        values = np.interp(lengths, *zip(*points, strict=True))
        assert first_reach(points, target) == pytest.approx(lengths[np.argmax(values >= target)], abs=1e-3)


def test_an_older_comparison_without_it_is_read(tmp_path: Path) -> None:
    from blockyard.report.load.document import read_document

    content = compared(tmp_path).as_dict()
    assert read_document(content).savings[0].arm == "pre"
    del content["savings"]
    assert read_document(content).savings == []
