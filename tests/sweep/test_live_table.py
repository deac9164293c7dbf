"""The live table of a sweep, drawn on a terminal of our own."""

from __future__ import annotations

import io
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from blockyard.atomic_files import write_json
from blockyard.sweep.cell.states import CellState, PlannedRun
from blockyard.sweep.execution.estimate import Estimate, seconds_left
from blockyard.sweep.execution.tables import SweepScreen
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.sweep import sweep_runs


class Once:
    """A display that prints what it is told to draw."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def update(self, drawn: Any, *, refresh: bool) -> None:
        assert refresh
        self.console.print(drawn)


def drawn(plan: SweepPlan, runs: list[PlannedRun], height: int = 30) -> str:
    """What the terminal shows."""
    shown = io.StringIO()
    screen = SweepScreen(plan, lambda text: None, live=True)
    screen._display = Once(Console(file=shown, width=100, height=height, color_system=None))
    screen.show({cell.run: run for run in runs for cell in run.cells}, 2, last=True)
    return shown.getvalue()


@pytest.fixture
def plan(tmp_path: Path) -> SweepPlan:
    return sweep_runs.plan(tmp_path)


def standings(plan: SweepPlan, tmp_path: Path) -> list[PlannedRun]:
    """Done, running, failed and queued, in the order of the cells."""
    running = tmp_path / "running"
    running.mkdir()
    (running / "metrics.csv").write_text("step,train/loss,epoch,seconds,val/accuracy\n1,2.0,0.5,1.0,0.25\n")
    config = {"trainer": {"max_steps": 4, "max_epochs": None}}
    done = PlannedRun(
        [plan.cells[0]], tmp_path, config, CellState("done", metrics={"test/accuracy": 0.875}), seconds=8.0
    )
    own = PlannedRun([plan.cells[1]], running, config, CellState("running"), submitted=True)
    failed = PlannedRun([plan.cells[2]], tmp_path, config, CellState("failed", "loss is NaN"), ended=True)
    return [done, own, failed, PlannedRun([plan.cells[3]], tmp_path, config, CellState("missing"))]


def test_arms_stand_by_seeds_with_state_metric_and_time_left(plan: SweepPlan, tmp_path: Path) -> None:
    lines = drawn(plan, standings(plan, tmp_path)).splitlines()
    head, pre, post = (next(line for line in lines if text in line) for text in ("seed 0", "pre_norm", "post_norm"))
    assert head.split() == ["arm", "seed", "0", "seed", "1"]
    assert pre.split() == ["pre_norm", "0.875", "25%", "0.25", "3.0", "s"]
    assert post.split() == ["post_norm", "failed"]
    assert any("1 done, 1 running, 1 queued, 1 failed" in line and line.rstrip().endswith("left") for line in lines)


def test_each_line_without_a_terminal_ends_in_the_time_left(plan: SweepPlan, tmp_path: Path) -> None:
    """One of two slots is at its first cell, two are left, and a cell took eight seconds."""
    lines: list[str] = []
    screen = SweepScreen(plan, lines.append, live=False)
    done, running, _, queued = standings(plan, tmp_path)
    screen.total = 3
    screen.report(done)
    assert lines[-1] == "[1/3] pre_norm s0 done test/accuracy 0.875 in 8.0 s"
    screen.show({str(number): run for number, run in enumerate((done, running, queued))}, 2)
    screen.report(done)
    assert lines[-1] == "[2/3] pre_norm s0 done test/accuracy 0.875 in 8.0 s, about 8.0 s left"


def finished(plan: SweepPlan, folder: Path, value: float, metric: str = "test/accuracy") -> PlannedRun:
    """A run with this value beside simple baselines."""
    folder.mkdir(exist_ok=True)
    accuracies = {"linear": 0.981, "majority": 0.1, "nearest_centroid": 0.954}
    baselines: dict[str, Any] = {name: {"accuracy": own, "loss": 1 - own} for name, own in accuracies.items()}
    write_json(folder / "summary.json", {"baselines": baselines | {"ranked": {"loss": None}}})
    return PlannedRun([plan.cells[0]], folder, {}, CellState("done", metrics={metric: value}))


def test_the_first_cell_is_compared_with_the_simple_baselines(plan: SweepPlan, tmp_path: Path) -> None:
    """Fifteen cells were spent before the answer said that a linear model is better."""
    lines: list[str] = []
    screen = SweepScreen(plan, lines.append, live=False)
    screen.total = 4
    for number, value in enumerate((0.719, 0.5, 0.992, 0.7)):
        screen.report(finished(plan, tmp_path / str(number), value))
    assert [line for line in lines if not line.startswith("[")] == [
        "pre_norm s0: test/accuracy 0.719; linear has 0.981 (nearest_centroid 0.954): stop with Ctrl-C to change the "
        "base first",
        "pre_norm s0: test/accuracy 0.992; the best simple baseline, linear, has 0.981",
    ]


def test_a_loss_is_compared_by_its_direction_and_a_run_without_baselines_is_not(
    plan: SweepPlan, tmp_path: Path
) -> None:
    plan.facts["metric"] = {"name": "test/loss", "validation": "val/loss", "direction": "min"}
    for value, expected in (
        (0.04, ["pre_norm s0: test/loss 0.04; linear has 0.019"]),  # nothing is left to stop
        (0.01, ["pre_norm s0: test/loss 0.01; the best simple baseline, linear, has 0.019"]),
    ):
        lines: list[str] = []
        screen = SweepScreen(plan, lines.append, live=False)
        screen.total = 1
        screen.report(finished(plan, tmp_path / str(value), value, "test/loss"))
        assert lines[1:] == expected
    (tmp_path / "0.01" / "summary.json").write_text("{}")
    screen = SweepScreen(plan, lines.append, live=False)
    lines.clear()
    screen.report(PlannedRun([plan.cells[0]], tmp_path / "0.01", {}, CellState("done", metrics={"test/loss": 0.5})))
    assert len(lines) == 1


def test_many_seeds_are_counted(tmp_path: Path) -> None:
    plan = sweep_runs.plan(tmp_path, seeds=tuple(range(9)))
    runs = [PlannedRun([cell], tmp_path, {}, CellState("done" if cell.seed < 4 else "missing")) for cell in plan.cells]
    lines = drawn(plan, runs).splitlines()
    assert [line.split() for line in lines if "_norm" in line] == [
        ["pre_norm", "4", "done,", "5", "queued"],
        ["post_norm", "4", "done,", "5", "queued"],
    ]


def test_arms_where_something_happens_come_first_on_a_low_terminal(tmp_path: Path) -> None:
    arms = {f"arm{number}": [f"optimizer.lr={number + 1}e-3"] for number in range(6)}
    plan = sweep_runs.plan(tmp_path, arms=arms, seeds=(0,))
    runs = [PlannedRun([cell], tmp_path / cell.variant, {}, CellState("missing")) for cell in plan.cells]
    runs[5].submitted = True
    shown = [line.split()[0] for line in drawn(plan, runs, height=8).splitlines() if line.lstrip().startswith("arm")]
    assert shown == ["arm", "arm5", "arm0", "arm1", "arm2"]


def test_a_sweep_without_an_estimate_is_announced_by_its_first_steps(
    plan: SweepPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cell took 8 s for a quarter of its steps, so 35.5 s with its start, and so do the others.

    The announcement is printed once, and a cell of 100 times the FLOPs is not timed by a small one.
    """
    clock = iter([0.0, 12.0, 20.0, 21.0])
    lines: list[str] = []
    runs = {
        cell.run: PlannedRun([cell], tmp_path / cell.run, {"trainer": {"max_steps": 4}}, CellState("missing"))
        for cell in plan.cells
    }
    cost = Estimate(4, seconds=None, sizes=dict.fromkeys(runs, 1e6))
    own = runs[plan.cells[0].run]
    own.submitted, own.started, own.now = True, -100.0, CellState("running")
    own.path.mkdir(parents=True)
    age = (datetime.now(UTC) - timedelta(seconds=11.5)).isoformat()  # of a run that was submitted long before
    write_json(own.path / "status.json", {"state": "running", "started": age})
    monkeypatch.setattr(time, "monotonic", lambda: now)
    now = next(clock)
    screen = SweepScreen(plan, lines.append, live=False, announced=cost)
    for step in (1, 2, 2):
        (own.path / "metrics.csv").write_text(f"step,train/loss,epoch,seconds,val/accuracy\n{step},2.0,0.5,1.0,0.25\n")
        now = next(clock)
        screen.show(runs, 1)
    assert lines == ["about 2 min with 1 in parallel in all, by the first steps"]
    assert cost.seconds == pytest.approx(20 + (2 * 8 + 3 * 35.5), abs=1)
    sizes = cost.sizes | {plan.cells[3].run: 1e8}
    assert seconds_left(runs, 1, sizes) is None
    assert seconds_left(runs, 2, cost.sizes) == pytest.approx(71, abs=1)
