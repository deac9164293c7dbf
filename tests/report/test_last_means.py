"""Arms that are compared by the mean of the last evaluations of their runs, `val/accuracy@last2`."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.page.document import render
from blockyard.runs.metrics import read_metrics
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import NORMS, runs_of_three_arms, sweep, warned
from tests.support.every import every

VALUES = {"post": {0: 0.90, 1: 0.91, 2: 0.905}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}
METRIC = "val/accuracy@last2"


def of_last(plan: SweepPlan, arm: str, count: int = 2) -> list[float]:
    """The means of the last evaluations of an arm's runs, by seed."""
    means = []
    for cell in plan.cells:
        if cell.variant == arm:
            rows = read_metrics(plan.path(cell) / "metrics.csv")
            values = [row["val/accuracy"] for row in rows if "val/accuracy" in row][-count:]
            means.append(sum(values) / count)
    return means


def test_a_sweep_is_judged_by_the_mean_of_the_last_evaluations(tmp_path: Path) -> None:
    asked = {"metric": METRIC, "expect": "pre > post"}
    plan = sweep(tmp_path, NORMS, VALUES, question=asked)
    plan.facts["metric"] = {"name": METRIC, "validation": METRIC, "direction": "max"}
    comparison = compare(plan, changes=False)
    assert (comparison.metric, comparison.direction) == (METRIC, "max")
    for arm in NORMS:
        assert comparison.arm(arm).mean == pytest.approx(sum(of_last(plan, arm)) / 3)
    assert comparison.arm("pre").mean < 0.9  # the last evaluation alone is at 0.93
    assert comparison.expect is not None
    assert comparison.expect.verdict == "supported"
    assert comparison.directions[METRIC] == "max"
    assert METRIC in render(comparison.as_dict())


def test_any_runs_are_compared_by_it_where_it_is_asked_for(tmp_path: Path) -> None:
    plan = sweep(tmp_path / "one", NORMS, VALUES)
    comparison = compare(plan, metric="accuracy@last2", changes=False)
    assert comparison.metric == METRIC
    assert comparison.arm("post").mean == pytest.approx(sum(of_last(plan, "post")) / 3)
    runs_of_three_arms(tmp_path / "runs")
    assert compare(tmp_path / "runs", metric=METRIC, changes=False).direction == "max"
    by_norm = compare(tmp_path / "runs", metric=METRIC, by="block", changes=False)
    assert every(arm.mean is not None for arm in by_norm.arms)


def test_runs_with_fewer_evaluations_are_refused_or_named(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, VALUES)
    with pytest.raises(
        UserError, match="no run has 4 evaluations of val/accuracy, of which it is the mean; they have 3"
    ):
        compare(plan, metric="val/accuracy@last4", changes=False)
    with pytest.raises(UserError, match=r"test data is evaluated once, at the end of a run; val/accuracy@last2 is"):
        compare(plan, metric="test/accuracy@last2", changes=False)
    path = plan.path(plan.cells[0])
    lines = (path / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(lines[:5]))  # up to the first evaluation
    comparison = compare(plan, metric=METRIC, changes=False)
    assert comparison.arm("post").n == 2
    assert warned(comparison, "1 runs have fewer than 2 evaluations", f"{path.parent.name}/s0")
