"""Estimates come from configs, finished runs, and where there are none from the first steps of a cell."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from blockyard.atomic_files import write_json, write_yaml
from blockyard.cli import main
from blockyard.config import size_matching
from blockyard.config.build import Components
from blockyard.engine import cost_card
from blockyard.engine.data_reader import DataReader
from blockyard.runs.store import runs
from blockyard.sweep.cells import Cell, Variant
from blockyard.sweep.execution import first_steps
from blockyard.sweep.execution.estimate import FinishedRuns, RunSizes, RunTime, estimate
from blockyard.sweep.execution.first_steps import measure
from blockyard.sweep.execution.measured_run import MeasuredRuns
from blockyard.sweep.execution.step_times import MeasuredRun
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan

FILE = """
claim: One is better
base: [experiment=vit_digits, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, trainer=cpu]
arms: {plain: [], rms: [norm=rms]}
seeds: 2
"""
SIZES = "{middle: [model.dim=64], small: [], large: [model.dim=128]}"
SEARCH = "search: {trials: 2, sampler: random, space: {optimizer.lr: {low: 1e-4, high: 1e-2, log: true}}}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(FILE)
    return tmp_path


def planned(here: Path, *overrides: str) -> SweepPlan:
    return make_plan(here / "mine.yaml", outputs="outputs", overrides=overrides)


def finish(
    plan: SweepPlan, cell: Cell, *, host: str | None = None, choices: dict[str, str] | None = None, **summary: object
) -> None:
    """Leave a finished run of as many FLOPs as its arm has and of five steps, which took 100 seconds."""
    folder = plan.path(cell)
    flops = sizes(plan).flops(cell.variant) / 320
    figures = {"metrics": {}, "seconds": 100.0, "samples": 320, "steps": 5, "flops_per_sample": {"training": flops}}
    write_json(folder / "summary.json", figures | summary)
    facts = {
        "identity": cell.run.partition("/")[0].rpartition("-")[2],
        "host": {"name": host or socket.gethostname()},
        "choices": {"trainer": "cpu", "debug": "none"} | (choices or {}),
    }
    write_json(folder / "run.json", facts)
    write_yaml(folder / "config.yaml", plan.config(cell))


def sizes(plan: SweepPlan) -> RunSizes:
    return RunSizes(plan, FinishedRuns.read(plan))


EPOCHS = ["trainer.limit_train=null", "trainer.max_steps=null", "trainer.max_epochs=2"]


@pytest.mark.full
def test_a_dry_run_measures_what_no_finished_run_tells(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FLOPs of epochs come from the data, the time from the first steps of the first arm, which are kept."""
    for overrides in ([], EPOCHS):
        assert main(["sweep", "mine.yaml", "--dry-run", "--workers", "1", *overrides]) == 0
        out = capsys.readouterr().out
        cost = r"4 to run: [\d.e+]+ training FLOPs, about \d+ \w+ with 1 in parallel"
        assert re.search(cost + r" \(from the first steps of plain\)", out), out
    assert not runs("outputs")
    assert {path.name for path in here.rglob("*.json")} > {"measured.json"}


@pytest.mark.full
def test_a_measured_run_is_taken_apart(here: Path) -> None:
    """The whole run has all its steps, an evaluation after each epoch and one of the test split."""
    whole = ("trainer.limit_val=null", "trainer.limit_test=null", "trainer.eval_every=null")
    plan = planned(here, *EPOCHS, *whole, "data.eval_batch_size=100")
    variant = plan.variants["plain"]
    run = measure(variant.config, variant.choices, 1)
    assert run is not None
    assert (run.total, run.steps_per_epoch) == (2 * (1295 // 64), 1295 // 64)
    assert min(run.start, run.step, run.evaluation) > 0
    exact = replace(run, start=10.0, step=2.0, evaluation=0.5, saving=0.25)
    splits = DataReader().splits(variant.config)[1]
    batches = 2 * 2 + 4  # of 143 and of 359 samples, of which two were measured
    assert exact.seconds(variant.config, splits) == 10 + run.total * 2 + batches / 2 * 0.5 + 2 * 0.25


def test_what_a_dry_run_measured_is_announced_by_the_sweep(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of threads is measured again, and a damaged file tells nothing."""
    plan, measured = planned(here), []
    times = MeasuredRun(2.0, 1.0, 0.0, 0.0, total=5, steps_per_epoch=20)

    def measure(config: object, choices: object, threads: int | None) -> MeasuredRun:
        measured.append(threads)
        return times

    monkeypatch.setattr(first_steps, "measure", measure)
    for data in (DataReader(), DataReader()):  # a dry run measures again
        dry = estimate(plan, plan.cells, data=data, measured=MeasuredRuns(plan, 1, data)).seconds
    assert dry == pytest.approx(28, abs=0.5)  # with the imports, of which there are none any more
    assert measured == [1, 1]
    assert list((here / "outputs" / ".baselines").iterdir())  # which the first cell does not compute again
    assert estimate(plan, plan.cells, data=DataReader(), measured=MeasuredRuns(plan, 1, None)).seconds == dry
    assert MeasuredRuns(plan, 2, None)(plan.variants["plain"]) is None
    (plan.folder / "measured.json").write_text("{")
    assert MeasuredRuns(plan, 1, None)(plan.variants["plain"]) is None
    assert measured == [1, 1]


def test_the_last_cell_may_run_alone(here: Path) -> None:
    """Three cells of 100 seconds take two workers 200, not 150."""
    plan = planned(here)
    finish(plan, plan.cells[0])
    finish(plan, plan.cells[2])
    assert estimate(plan, plan.cells[1:], parallel=2).seconds == 200


def test_arms_of_unequal_size_are_between_the_smallest_and_the_largest(here: Path) -> None:
    """A small model computes fewer FLOPs a second: its steps do not tell the time of a large one."""
    (here / "mine.yaml").write_text(FILE.replace("{plain: [], rms: [norm=rms]}", SIZES))
    plan = planned(here)
    sizes_of = {name: sizes(plan).flops(name) for name in plan.variants}
    steps = {"small": 1.0, "large": 5.0}
    measured_arms = []

    def measured(variant: Variant) -> MeasuredRun:
        measured_arms.append(variant.arm)
        return MeasuredRun(2.0, steps[variant.arm], 0.0, 0.0, total=10, steps_per_epoch=1295)

    cells = [cell for cell in plan.cells if cell.seed == 0]
    result = estimate(plan, cells, data=DataReader(), measured=measured)
    assert measured_arms == ["small", "large"]
    share = (sizes_of["middle"] - sizes_of["small"]) / (sizes_of["large"] - sizes_of["small"])
    assert result.seconds == pytest.approx(12 + 52 + 12 + share * 40)
    assert "from the first steps of small and large" in str(result)
    imported = estimate(
        plan, cells, data=DataReader(), measured=lambda variant: replace(measured(variant), imports=9.0)
    )
    assert imported.seconds == pytest.approx(9 + result.seconds)


@pytest.mark.parametrize(
    ("ratio", "steps", "choices"),
    [(4.0, 5, {}), (0.25, 5, {}), (1.0, 20, {}), (1.0, 5, {"debug": "fast"}), (1.0, 5, {"trainer": "gpu"})],
)
def test_a_run_of_another_size_or_kind_tells_nothing(
    here: Path, ratio: float, steps: int, choices: dict[str, str]
) -> None:
    """A short run is mostly its start, one of `debug` is no run, and another trainer has another device."""
    plan = planned(here)
    flops = ratio * sizes(plan).flops("rms") / 320
    finish(plan, plan.cells[0], choices=choices, steps=steps, flops_per_sample={"training": flops})
    assert estimate(plan, [plan.cells[2]]).seconds is None
    assert estimate(plan, [plan.cells[1]]).seconds == 100  # another seed of the same arm


def test_a_run_of_about_the_size_is_at_most_the_root_of_three_off() -> None:
    """The start does not grow; the work grows with the steps, and half as much, in logarithms, with their FLOPs."""
    run = RunTime(start=10.0, work=40.0, flops=1e9, steps=100)
    assert run.scaled(1e9, 100) == 50
    assert run.scaled(2e9, 200) == 90
    assert run.scaled(2e9, 100) == pytest.approx(10 + 40 * 2**0.5)


def test_time_comes_from_finished_runs_on_this_host(here: Path) -> None:
    """From runs of the same arm where there are any, else from runs of about its size."""
    plan = planned(here)
    first, second = plan.cells[0], plan.cells[2]
    finish(plan, first)
    result = estimate(plan, [plan.cells[1], second], parallel=2)
    flops = [sizes(plan).flops(cell.variant) for cell in (first, second)]
    assert result.seconds == pytest.approx(100 * max(1.0, (flops[1] / flops[0]) ** 0.5))
    assert result.flops == pytest.approx(sum(flops))
    assert "with 2 in parallel (from 1 finished run on this host)" in str(result)


def test_evaluations_and_the_start_count(here: Path) -> None:
    """A run that trained for 100 s took 400 s from its start to its end."""
    plan = planned(here)
    finish(plan, plan.cells[0])
    times = {"started": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T10:06:40+00:00"}
    write_json(plan.path(plan.cells[0]) / "status.json", {"state": "done", "exit_code": 0} | times)
    assert estimate(plan, [plan.cells[1]]).seconds == pytest.approx(400.0)


def test_runs_measured_alone_do_not_show_how_parallel_ones_slow_each_other_down(here: Path) -> None:
    plan = planned(here)
    minutes = iter(["10:00", "10:02", "10:02", "10:04", "10:03", "10:05"])
    texts = []
    for cell in plan.cells[:3]:
        finish(plan, cell, seconds=120.0)
        times = {name: f"2026-01-01T{next(minutes)}:00+00:00" for name in ("started", "ended")}
        write_json(plan.path(cell) / "status.json", {"state": "done", "exit_code": 0} | times)
        texts.append([str(estimate(plan, plan.cells[:2], parallel=slots)) for slots in (1, 2, None)])
    for text in texts[:2]:
        assert "about 4 min with 1 in parallel" in text[0]
        assert "about 2 min, up to 4 min if they slow each other down, with 2 in parallel" in text[1]
        assert "up to" not in text[2]
    assert "about 2 min with 2 in parallel (from 3 finished runs" in texts[2][1]  # the second and the third overlap


def test_runs_of_another_host_do_not_count(here: Path) -> None:
    plan = planned(here)
    finish(plan, plan.cells[0], host="elsewhere")
    assert "time unknown until a cell has taken its first steps" in str(estimate(plan, plan.cells))


def test_flops_are_those_of_the_whole_run(here: Path) -> None:
    """Against the engine's own count of one sample, forward and backward, times the samples."""
    plan = planned(here)
    config = plan.variants["plain"].config
    parts = Components(config)
    batch = parts.data.load(parts.tokenizer).train.batch(torch.zeros(1, dtype=torch.int64), None)
    per_sample = cost_card.flops_per_sample(parts.model(0), parts.objective, batch)["training"]
    exact = per_sample * 5 * config["data"]["batch_size"]
    assert sizes(plan).flops("plain") == pytest.approx(exact, rel=0.1)


def test_epochs_are_cut_as_the_engine_cuts_them(here: Path) -> None:
    """The samples of an epoch come from a finished run on the same data."""
    plan = planned(here)
    config = plan.variants["plain"].config
    trainer, batch = config["trainer"] | {"limit_train": None}, config["data"]["batch_size"]
    two_epochs = config | {"trainer": trainer | {"max_steps": None, "max_epochs": 2}}
    assert sizes(plan).samples(two_epochs) is None
    finish(plan, plan.cells[0], data={"train": 1293})
    split_sizes = sizes(plan)
    for changes, steps in (
        ({"max_steps": 7, "max_epochs": None}, 7),
        ({"max_steps": None, "max_epochs": 2}, 2 * (1293 // batch)),
        ({"max_steps": None, "max_epochs": 3, "limit_train": 4}, 12),
        ({"max_steps": 5, "max_epochs": 3, "limit_train": 4}, 5),
    ):
        assert split_sizes.samples(config | {"trainer": trainer | changes}) == steps * batch
    other = two_epochs | {"data": config["data"] | {"split_seed": 7}}
    assert split_sizes.samples(other) is None


@pytest.mark.full
def test_a_shared_queue_has_no_known_number_of_slots(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")
    plan = planned(here)
    finish(plan, plan.cells[0])
    finish(plan, plan.cells[2])

    def dry_run(*arguments: str) -> str:
        assert main(["sweep", "mine.yaml", "--dry-run", "--executor", "slurm", *arguments]) == 0
        return capsys.readouterr().out

    alternatives = r"about [\w ]+ one after another, [\w ]+ if all run in parallel; the queue decides how many do"
    assert re.search(alternatives, dry_run())
    assert re.search(r"about \w+ \w+ with 3 in parallel", dry_run("executor.workers=3"))
    (here / "mine.yaml").write_text(
        FILE + SEARCH.replace("sampler: random", "sampler: tpe").replace("trials: 2", "trials: 3")
    )
    assert "with 8 in parallel" in dry_run()
    (here / "mine.yaml").write_text(FILE + SEARCH)
    assert "one after another" in dry_run()


def test_a_model_whose_size_is_unknown_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("this part needs real tensors\nand more")

    monkeypatch.setattr(size_matching, "flops_by_module", broken)
    plan = planned(here)
    text = str(estimate(plan, plan.cells))
    assert "FLOPs unknown, time unknown" in text
    assert "the size of a model is unknown: RuntimeError: this part needs real tensors and 1 more of the kind" in text
