"""Sweeps whose arms all train for so many seconds, or with so many FLOPs."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_json, write_json
from blockyard.commands.sweep import SweepOptions, _expected
from blockyard.engine.data_reader import DataReader
from blockyard.report.comparison import compare
from blockyard.sweep.cells import Task, Variant
from blockyard.sweep.execution.estimate import FinishedRuns, RunSizes
from blockyard.sweep.execution.expected_steps import clock_of, expected_steps
from blockyard.sweep.execution.step_times import MeasuredRun
from blockyard.sweep.executor import _slots
from blockyard.sweep.executor.local import together
from blockyard.sweep.plan.sizes import TRAINING
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import norms_sweep
from tests.support.every import every
from tests.sweep.spec_plans import plan_from, refusals

FILE = """
claim: x
base: [experiment=vit_digits, model.dim=16, model.depth=1, model.heads=2, logger=none, trainer=cpu]
arms: {plain: [], rms: [norm=rms]}
match: {seconds: 60}
seeds: 2
"""
BY_FLOPS = FILE.replace("{seconds: 60}", "{flops: 1e12}")


def test_every_arm_trains_for_the_same_seconds(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, FILE)
    trainers = [variant.config["trainer"] for variant in plan.variants.values()]
    assert every(trainer["max_seconds"] == 60 for trainer in trainers)
    assert every(trainer["max_epochs"] is trainer["max_steps"] is trainer["max_flops"] is None for trainer in trainers)
    assert plan.question["match"] == {"seconds": 60}


def test_every_arm_trains_with_the_same_flops(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, BY_FLOPS)
    trainers = [variant.config["trainer"] for variant in plan.variants.values()]
    assert every(trainer["max_flops"] == 1e12 for trainer in trainers)
    assert every(trainer["max_seconds"] is None for trainer in trainers)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{seconds: 60}", "{seconds: -1}", "match.seconds: expected a number above 0"),
        ("{seconds: 60}", "{minutes: 1}", "match.minutes: unknown key (keys: seconds, flops)"),
        ("{seconds: 60}", "{seconds: 60, flops: 1e12}", "has not one unit; write {seconds: 60} or {flops: 1e12}"),
        ("{seconds: 60}", "parms", 'match: "parms" is not one of params, flops, active, state; did you mean params?'),
        ("[norm=rms]", "[trainer.max_steps=5]", "it sets how long every arm trains, so no arm may set trainer.max_ste"),
        ("logger=none", "trainer.max_epochs=3", "so the base may not set trainer.max_epochs"),
        ("seeds: 2", "tune: {trainer.max_steps: [5, 9]}", "so tune cannot contain trainer.max_steps"),
        (
            "seeds: 2",
            "ladder: {params: [1e3, 3e3, 1e4, 3e4]}\nmetric: test/loss",
            "the rungs of `ladder` set how long an arm trains",
        ),
        ("trainer=cpu", "trainer=ddp", "ends a run of one process, and this one has 2"),
    ],
)
def test_a_length_that_cannot_be_shared_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert any(message in problem for problem in refusals(tmp_path, FILE.replace(old, new)))


def test_the_command_line_cannot_change_it(tmp_path: Path) -> None:
    (problem,) = refusals(tmp_path, FILE, "trainer.max_steps=3")
    assert problem == "trainer.max_steps=3: `match` of the file sets how long every arm trains; leave it out"


# -- cells beside each other -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        (FILE, "trainer.max_seconds=60"),
        (BY_FLOPS, None),
        (BY_FLOPS + "metric: step_seconds\n", "step_seconds"),
        (BY_FLOPS + "seconds_to: val/accuracy >= 0.5\n", "seconds_to(val/accuracy >= 0.5)"),
        (BY_FLOPS + "steps_to: val/accuracy >= 0.5\n", None),
    ],
)
def test_cells_run_one_at_a_time_where_a_clock_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, clock: str | None
) -> None:
    monkeypatch.setattr(_slots, "visible_gpus", list)
    monkeypatch.setattr("blockyard.sweep.executor.local.visible_gpus", list)
    monkeypatch.setattr("blockyard.sweep.executor.local.cpu_cores", lambda: 4)
    plan = plan_from(tmp_path, text)
    assert clock_of(plan) == clock
    assert SweepOptions().build_executor(plan).capacity == (4 if clock is None else 1)
    assert SweepOptions(workers=3).build_executor(plan).capacity == 3
    assert SweepOptions(executor_options={"workers": 2}).build_executor(plan).capacity == 2
    monkeypatch.setattr(_slots, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr("blockyard.sweep.executor.local.visible_gpus", lambda: ["0", "1"])
    assert SweepOptions().build_executor(plan).capacity == 2  # one on each GPU


def test_a_plan_says_how_cells_run_where_a_clock_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_slots, "visible_gpus", list)
    monkeypatch.setattr("blockyard.sweep.executor.local.visible_gpus", list)
    plan = plan_from(tmp_path, FILE)

    def said(**options: Any) -> str:
        chosen = SweepOptions(**options)
        return next(_expected(plan, chosen.build_executor(plan), chosen, None, None))

    assert "trainer.max_seconds=60 is read off a clock, so cells run one at a time" in said()
    assert "and 2 cells at a time slow each other down" in said(workers=2)
    assert "and 4 cells at a time slow each other down" in said(executor_options={"cells_per_process": 4})


def test_a_run_that_time_ends_shares_no_process(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, FILE)
    queue = deque(Task(cell.run, plan.config(cell), {}) for cell in plan.cells)
    chosen, reason = together(queue, 4)
    assert len(chosen) == 1
    assert reason == "trainer.max_seconds=60.0 is for a run in a process of its own"


def test_runs_that_shared_cores_are_told(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path, question={"metric": "step_seconds"})
    plan.facts["metric"] = {"name": "step_seconds", "validation": "val/accuracy", "direction": "min"}
    times = iter(range(100))
    done = []
    for cell in plan.cells:
        path = plan.path(cell) / "status.json"
        if path.exists() and read_json(path)["state"] == "done":
            done.append(path)
            _set_times(path, 10 * next(times), 9)
    summaries = [path.with_name("summary.json") for path in done]
    for path in summaries:
        write_json(path, read_json(path) | {"device": "cpu"})
    assert not _told(plan)
    _set_times(done[1], 5, 9)  # begins while the first one runs, which ends at 9
    (line,) = _told(plan)
    assert f"2 of {len(done)} runs shared a machine's cores" in line


def _set_times(path: Path, start: int, seconds: int) -> None:
    def moment(second: int) -> str:
        return f"2026-01-02T03:{second // 60:02d}:{second % 60:02d}.000Z"

    write_json(path, read_json(path) | {"started": moment(start), "ended": moment(start + seconds)})


def _told(plan: SweepPlan) -> list[str]:
    return [line for line in compare(plan, changes=False).warnings if "is read off a clock" in line]


# -- steps that are expected -----------------------------------------------------------------------


def test_a_dry_run_says_how_many_steps_each_arm_has(tmp_path: Path) -> None:
    times = {"plain": 0.5, "rms": 0.25}

    def measured(variant: Variant) -> MeasuredRun:
        return MeasuredRun(1.0, times[variant.arm], 0.0, 0.0, total=round(60 / times[variant.arm]), steps_per_epoch=20)

    (line,) = expected_steps(plan_from(tmp_path, FILE), measured, None)
    assert line == "expected steps, by first steps of one cell alone: plain about 120, rms about 240"
    (line,) = expected_steps(plan_from(tmp_path, FILE), lambda variant: None, None)
    assert line.startswith("expected steps: unknown before a dry run")


def test_flops_tell_the_steps_before_any_run(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, BY_FLOPS)
    sizes = RunSizes(plan, FinishedRuns())
    config = plan.variants["plain"].config
    forward = sizes.models.measure(config, "flops")
    assert forward
    steps = 1e12 // (TRAINING * forward * config["data"]["batch_size"])
    assert sizes.steps(config) == steps
    (line,) = expected_steps(plan, None, None)
    assert f"plain about {steps:,.0f}, rms about" in line


def test_first_steps_are_those_of_a_run_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of the arm may be fewer than those that are measured."""
    from blockyard.sweep.execution import first_steps

    monkeypatch.setattr(first_steps, "SECONDS", 0.2)
    variant = plan_from(tmp_path, FILE.replace("60", "0.5")).variants["plain"]
    run: Any = first_steps.measure(variant.config, variant.choices, 1)
    assert run is not None
    assert run.total == max(1, round(0.5 / run.step))
    assert run.seconds(variant.config, DataReader().splits(variant.config)[1]) > 0
