"""Runs that take their steps together end where each of them ends alone, write what it writes, and fail alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.atomic_files import read_json
from blockyard.contracts import Batch
from blockyard.engine.callbacks.stopwatch import Stopwatch
from blockyard.engine.stacked import step as stacked_step
from blockyard.engine.stacked.burst import Burst, StackedAdamW
from blockyard.engine.stacked.runs import StackedRuns
from blockyard.engine.stacked.step import UnlikeBatchesError, _stacked
from blockyard.runs.identity import run_name
from blockyard.runs.metrics import read_metrics
from blockyard.runs.status import read_status
from blockyard.sweep.cell.execute import STACKED, execute, execute_together
from blockyard.sweep.cells import Outcome, Task
from tests.support.experiment_data import experiments, own_data
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, TEXT, configured, steps

DIGITS = (
    *("data=digits", *ON_CPU, *ONE_LAYER, "data.batch_size=8", "name=stacked", *ONE_BATCH),
    *(*steps(12, 6), "trainer.log_every=4"),
)
CODE = (*TEXT, "name=stacked", "tokenizer=byte", *steps(12, 6), "trainer.log_every=4")


def tasks(outputs: Path, *overrides: str, seeds: int = 3, each: tuple[tuple[str, ...], ...] = ()) -> list[Task]:
    """A task a seed. each: further overrides of each one"""
    cells = []
    for seed in range(seeds):
        config, choices = configured(*overrides, f"outputs={outputs}", f"seed={seed}", *(each[seed] if each else ()))
        cells.append(Task(f"{run_name(config)}/s{seed}", config, choices, ("test",)))
    return cells


def together(cells: list[Task]) -> dict[str, Outcome]:
    """The outcomes of tasks that share this process, by key."""
    outcomes: list[Outcome] = []
    execute_together(cells, outcomes.append)
    return {outcome.key: outcome for outcome in outcomes}


def facts(path: Path) -> dict[str, Any]:
    """How a run took its steps."""
    return dict(read_json(path / "run.json")[STACKED])


def saved(path: Path) -> dict[str, Any]:
    """The last checkpoint of a run."""
    return torch.load(path / "checkpoints" / "last.ckpt", weights_only=True)


def gap(own: Any, other: Any) -> float:
    """The largest difference of two nested values of one form, as a share of the largest entry of its tensor."""
    if isinstance(own, torch.Tensor):
        assert own.shape == other.shape
        return float((own.double() - other.double()).abs().max() / own.double().abs().max().clamp(min=1e-3))
    if isinstance(own, dict):
        assert own.keys() == other.keys()
        return max((gap(own[name], other[name]) for name in own), default=0.0)
    if isinstance(own, list | tuple):
        assert len(own) == len(other)
        return max((gap(*pair) for pair in zip(own, other, strict=True)), default=0.0)
    assert own == other
    return 0.0


TIMES = ("seconds", "windows", "first")


def without_times(loop: dict[str, Any]) -> dict[str, Any]:
    """What the loop of a run saves, without the clock and the values that are compared with a tolerance."""
    return {
        name: value for name, value in loop.items() if name not in (*TIMES, "values", "tally", "auxiliary", "watchers")
    }


def case(name: str, *overrides: str, marks: Any = ()) -> Any:
    """Overrides as a parameter of a test."""
    return pytest.param(overrides, id=name, marks=marks)


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    "overrides",
    [
        case("adamw", *DIGITS, "optimizer=adamw", "optimizer.lr=0.001"),
        case("muon", *DIGITS, "optimizer=muon", "trainer.gradient_clip=0.5", "trainer.eval_every=5"),
        # Unclipped: a norm that is cut has the same length, whatever it was.
        case("accumulated", *DIGITS, "optimizer=sgd", "trainer.accumulate=2", "trainer.gradient_clip=null"),
        case("averages", *DIGITS, "optimizer=schedule_free", "callbacks=ema", marks=pytest.mark.full),
        case("rotated", *CODE, "position=rope", "optimizer=adamw", "optimizer.lr=0.001", marks=pytest.mark.full),
        case("mask", *CODE, "position=alibi", "token_mixer.num_kv_heads=1", "optimizer=adamw"),
    ],
)
def test_stacked_runs_end_where_lone_ones_do(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    joint, lone = tasks(tmp_path / "joint", *overrides, seeds=2), tasks(tmp_path / "lone", *overrides, seeds=2)
    assert {outcome.code for outcome in together(joint).values()} == {0}
    for task in lone:
        assert execute(task).code == 0
        one, other = tmp_path / "joint" / task.key, tmp_path / "lone" / task.key
        micro = 2 if "trainer.accumulate=2" in overrides else 1
        assert facts(one) == {"together": 12 * micro, "alone": 0}
        first, second = saved(one), saved(other)
        assert gap(first["state_dict"], second["state_dict"]) < 1e-3
        assert gap(first["optimizer_states"], second["optimizer_states"]) < 1e-2
        assert first["loops"] == second["loops"]
        loops = [without_times(content["callbacks"]["LoopCallback"]) for content in (first, second)]
        assert loops[0] == loops[1]
        rows = [read_metrics(path / "metrics.csv") for path in (one, other)]
        assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
        for mine_row, its_row in zip(*rows, strict=True):
            assert mine_row.keys() == its_row.keys()
            for name in mine_row.keys() - {"seconds"}:
                assert mine_row[name] == pytest.approx(its_row[name], rel=1e-3, abs=1e-4), name
        sizes = [(path / "checkpoints" / "last.ckpt").stat().st_size for path in (one, other)]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.05)  # of one run, not of all


@pytest.mark.full
def test_runs_of_other_rates_schedules_and_scales_share_steps(tmp_path: Path) -> None:
    each = (("optimizer.lr=0.01",), ("schedule=constant", "model.init_std=0.05"), ("optimizer.weight_decay=0.5",))
    joint = tasks(tmp_path / "joint", *DIGITS, "optimizer=adamw", each=each)
    lone = tasks(tmp_path / "lone", *DIGITS, "optimizer=adamw", each=each)
    assert {outcome.code for outcome in together(joint).values()} == {0}
    for task in lone:
        assert execute(task).code == 0
        first, second = saved(tmp_path / "joint" / task.key), saved(tmp_path / "lone" / task.key)
        assert gap(first["state_dict"], second["state_dict"]) < 1e-3
        assert facts(tmp_path / "joint" / task.key)["together"] == 12


@pytest.mark.full
def test_schedules_that_part_within_a_burst_are_each_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both begin alike, so that their first steps are taken by one optimizer; planted: so are the others."""
    each = (("schedule=constant",), ("schedule=wsd", "schedule.decay=0.5"))
    shared = (*DIGITS, "optimizer=adamw", "schedule.warmup=0", "trainer.log_every=50", "trainer.eval_every=null")
    for task in (lone := tasks(tmp_path / "lone", *shared, seeds=2, each=each)):
        assert execute(task).code == 0

    def largest_gap(name: str) -> float:
        joint = tasks(tmp_path / name, *shared, seeds=2, each=each)
        assert {outcome.code for outcome in together(joint).values()} == {0}
        pairs = [[saved(tmp_path / where / task.key)["state_dict"] for where in (name, "lone")] for task in lone]
        return max(gap(*pair) for pair in pairs)

    assert largest_gap("joint") < 1e-3
    monkeypatch.setattr(StackedAdamW, "alike", True)
    assert largest_gap("planted") > 1e-2


ALONE = {
    "dropout": ((*DIGITS, "block.dropout=0.1"), "draws random numbers"),
    "batch_norm": (
        (*DIGITS, "norm=batch", "block.dropout=0.1"),  # both are put back after the first look
        "draws random numbers",
    ),
    "experts": ((*DIGITS, "channel_mixer=experts", "channel_mixer.balance=bias"), "changes itself after each step"),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_cannot_be_stacked_is_trained_alone_to_the_bit(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    overrides, reason = ALONE[name]
    joint, lone = tasks(tmp_path / "joint", *overrides, seeds=2), tasks(tmp_path / "lone", *overrides, seeds=2)
    assert {outcome.code for outcome in together(joint).values()} == {0}
    assert caplog.text.count(reason) == 2
    for task in lone[1:]:  # the first one has nothing before it in its process
        assert execute(task).code == 0
        path = tmp_path / "joint" / task.key
        assert reason in facts(path)["reason"]
        assert facts(path)["together"] == 0
        assert gap(saved(path)["state_dict"], saved(tmp_path / "lone" / task.key)["state_dict"]) == 0


@pytest.mark.full
def test_models_that_differ_in_a_number_are_found_out(tmp_path: Path) -> None:
    """Its weights have one shape for each base of the rotation: only the first step tells."""
    cells = tasks(tmp_path, *CODE, "position=rope", seeds=2, each=(("position.base=10000",), ("position.base=10",)))
    assert {outcome.code for outcome in together(cells).values()} == {0}
    for task in cells:
        assert "differs by" in facts(tmp_path / task.key)["reason"]


def test_models_of_other_shapes_are_found_out(tmp_path: Path) -> None:
    cells = tasks(tmp_path, *DIGITS, seeds=2, each=((), ("model.dim=32",)))
    assert {outcome.code for outcome in together(cells).values()} == {0}
    assert "differ in the shape" in facts(tmp_path / cells[0].key)["reason"]


@pytest.mark.full
def test_batches_of_other_shapes_are_taken_alone(tmp_path: Path) -> None:
    overrides = ("experiment=translate_dates", *ON_CPU, *ONE_LAYER, "model.encoder_depth=1", "data.batch_size=2")
    overrides = (*overrides, *steps(6, 3), *ONE_BATCH, "name=stacked", "block.dropout=0", "model.dropout=0")
    joint, lone = tasks(tmp_path / "joint", *overrides, seeds=2), tasks(tmp_path / "lone", *overrides, seeds=2)
    assert {outcome.code for outcome in together(joint).values()} == {0}
    for task in lone:
        assert execute(task).code == 0
        path = tmp_path / "joint" / task.key
        assert facts(path)["alone"] > 0
        assert "reason" not in facts(path)
        assert gap(saved(path)["state_dict"], saved(tmp_path / "lone" / task.key)["state_dict"]) < 1e-3


def test_batches_of_which_some_lack_a_field_are_taken_alone() -> None:
    """Only the fields of the first one were stacked, so that the lengths of another one were left out."""
    bare = Batch(inputs=torch.zeros(2, 3), target=torch.zeros(2))
    batches = [bare, replace(bare, lengths=torch.tensor([3, 2]))]
    for order in (batches, batches[::-1]):
        with pytest.raises(UnlikeBatchesError, match="some batches have lengths and others none"):
            _stacked(order)
    assert _stacked([bare, bare])[0] == ["inputs", "target"]


@pytest.mark.full
def test_a_run_that_diverges_fails_alone(tmp_path: Path) -> None:
    each = ((), ("optimizer.lr=1e30", "schedule=constant"), ())
    cells = tasks(tmp_path, *DIGITS, "optimizer=sgd", "trainer.gradient_clip=null", each=each)
    outcomes = together(cells)
    assert [outcomes[task.key].code for task in cells] == [0, 1, 0]
    assert "at step" in str(outcomes[cells[1].key].reason)
    assert facts(tmp_path / cells[0].key)["together"] == 12


@pytest.mark.full
def test_a_run_whose_data_fails_in_a_burst_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Burst.batches
    count = iter(range(100))

    def batches(self: Burst) -> Any:
        broken = next(count) == 1
        for number, batch in enumerate(read(self)):
            yield OSError("the disk is gone") if broken and number == 1 else batch

    monkeypatch.setattr(Burst, "batches", batches)
    cells = tasks(tmp_path, *DIGITS, "optimizer=adamw")
    outcomes = together(cells)
    assert [outcomes[task.key].code for task in cells] == [0, 1, 0]
    assert "the disk is gone" in str(outcomes[cells[1].key].reason)


@pytest.mark.parametrize("name", ["apply", "close"])
def test_an_error_between_steps_ends_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Some weights may have changed already, so that no run may go on as if nothing had been."""

    def fail(self: Burst, *arguments: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(Burst, name, fail)
    cells = tasks(tmp_path, *DIGITS, "optimizer=adamw", seeds=2)
    outcomes = together(cells)
    assert [outcomes[task.key].code for task in cells] == [1, 1]
    assert "planted" in str(outcomes[cells[1].key].reason)


@pytest.mark.full
def test_done_runs_are_not_trained_again_and_others_go_on(tmp_path: Path) -> None:
    cells = tasks(tmp_path, *DIGITS, "optimizer=adamw")
    assert execute(cells[1]).code == 0
    assert {outcome.code for outcome in together(cells).values()} == {0}
    assert facts(tmp_path / cells[0].key)["together"] == 12
    assert STACKED not in read_json(tmp_path / cells[1].key / "run.json")


@pytest.mark.full
def test_each_run_has_a_record_at_wandb(tmp_path: Path) -> None:
    cells = tasks(tmp_path, *DIGITS, "logger=wandb", "logger.mode=offline", "optimizer=adamw", seeds=2)
    assert {outcome.code for outcome in together(cells).values()} == {0}
    records = [list((tmp_path / task.key).glob("wandb/offline-run-*/run-*.wandb")) for task in cells]
    assert [len(each) for each in records] == [1, 1]
    for task in cells:
        assert "left out" not in (tmp_path / task.key / "log.txt").read_text()


@pytest.mark.full
def test_the_seconds_of_runs_add_up_to_those_of_their_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run does not count the turns of the others."""
    added: list[float] = []
    took: list[float] = []
    add, step = Stopwatch.add, StackedRuns._step

    def timed(self: StackedRuns) -> None:
        began = time.perf_counter()
        step(self)
        took.append(time.perf_counter() - began)

    monkeypatch.setattr(Stopwatch, "add", lambda self, seconds: added.append(seconds) or add(self, seconds))
    monkeypatch.setattr(StackedRuns, "_step", timed)
    cells = tasks(tmp_path, *DIGITS, "optimizer=adamw", seeds=4)
    assert {outcome.code for outcome in together(cells).values()} == {0}
    assert 0 < sum(added) <= sum(took)


@pytest.mark.full
def test_a_signal_stops_all_of_them_and_each_resumes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = (*DIGITS, "optimizer=adamw", "optimizer.lr=0.001")
    joint, lone = tasks(tmp_path / "joint", *long, seeds=2), tasks(tmp_path / "lone", *long, seeds=2)
    apply, calls = Burst.apply, iter(range(100))

    def stop(self: Burst, result: Any) -> bool:
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(0.2)  # the main thread handles it meanwhile
        return apply(self, result)

    with monkeypatch.context() as patch:
        patch.setattr(Burst, "apply", stop)
        assert {outcome.code for outcome in together(joint).values()} == {143}
    for task in joint:
        status = read_status(tmp_path / "joint" / task.key)
        assert status.state == "interrupted"
        assert 0 < (status.step or 0) < 12
    assert execute(joint[1]).code == 0
    for task in lone[1:]:
        assert execute(task).code == 0
        pair = [saved(tmp_path / name / task.key) for name in ("joint", "lone")]
        assert gap(pair[0]["state_dict"], pair[1]["state_dict"]) < 1e-3
        assert pair[0]["loops"] == pair[1]["loops"]


def test_a_wrong_gradient_is_found_at_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the learners' gradients change places."""
    step = stacked_step.StackedWeights.step

    def swapped(self: Any, batches: Any) -> Any:
        result = step(self, batches)
        gradients = {name: None if g is None else g.flip(0) for name, g in result.gradients.items()}
        return result._replace(gradients=gradients)

    monkeypatch.setattr(stacked_step.StackedWeights, "step", swapped)
    cells = tasks(tmp_path, *DIGITS, "optimizer=adamw", seeds=2)
    assert {outcome.code for outcome in together(cells).values()} == {0}
    assert "the gradient of" in facts(tmp_path / cells[0].key)["reason"]


@pytest.mark.full
@pytest.mark.parametrize("name", list(experiments()))
def test_every_experiment_is_stacked_or_says_why_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways its runs end where lone ones do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    few = (*steps(4, 4), "trainer.max_epochs=null", "trainer.log_every=4", *ONE_BATCH, "trainer=cpu")
    quiet = ("logger=none", "callbacks=quiet", "trainer.num_workers=0", "trainer.threads=1", "data.batch_size=4")
    overrides = (f"experiment={name}", *few, *quiet, *own_data(name, tmp_path / "own"))
    joint, lone = tasks(tmp_path / "joint", *overrides, seeds=2), tasks(tmp_path / "lone", *overrides, seeds=2)
    assert {outcome.code for outcome in together(joint).values()} == {0}
    for task in lone:
        assert execute(task).code == 0
        path = tmp_path / "joint" / task.key
        how = facts(path)
        assert how["together"] + how["alone"] >= 4
        assert how["together"] or how.get("reason")
        rows = [read_metrics(folder / "metrics.csv")[-1] for folder in (path, tmp_path / "lone" / task.key)]
        # Of weights whose gradients are nothing but rounding, Adam makes steps of their full size: metrics tell less.
        assert rows[0]["train/loss"] == pytest.approx(rows[1]["train/loss"], rel=1e-3, abs=1e-4)
        if not how["together"]:
            assert gap(saved(path)["state_dict"], saved(tmp_path / "lone" / task.key)["state_dict"]) == 0
