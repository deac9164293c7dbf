"""A trial in a run: it reports the curve, leaves where it is pruned, and the run can still be made whole."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest

from blockyard.engine.callbacks.base import RunState
from blockyard.engine.faults.interrupts import PAUSED
from blockyard.engine.run import train
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import run_name
from blockyard.runs.start import create_run
from blockyard.sweep.cell import execute, trial_store
from blockyard.sweep.cell.execute import TRIAL, trial_callbacks
from blockyard.sweep.cells import Task
from blockyard.sweep.executor.local import LocalExecutor
from blockyard.sweep.search import search_runner
from tests.support.engine_runs import assert_same_bits, config, killed_at, run
from tests.support.every import every
from tests.support.tiny import TINY, steps
from tests.sweep.search_runs import ARMS, plan

METRIC = "val/accuracy"


def study(folder: Path, pruner: str, curves: list[list[float]]) -> optuna.Study:
    """A study with finished trials of these validation curves, and one more that runs."""
    folder.mkdir(parents=True, exist_ok=True)
    optuna_study = trial_store.open_study(folder, "arm", {"metric": METRIC, "pruner": pruner}, "max")
    optuna_study.pruner = trial_store.make_pruner(pruner)
    for curve in curves:
        trial = optuna_study.ask()
        for number, value in enumerate(curve, 1):
            trial.report(value, step=number)
            trial.should_prune()  # halving remembers who has passed
        optuna_study.tell(trial, curve[-1])
    optuna_study.ask()
    return optuna_study


def task(tmp_path: Path, optuna_study: optuna.Study, *overrides: str) -> Task:
    """The task of the trial that runs."""
    plain, choices = config(tmp_path, *overrides)
    where = {
        "storage": trial_store.storage_url(tmp_path / "study"),
        "study": "arm",
        "number": len(optuna_study.trials) - 1,
    }
    return Task(f"{run_name(plain)}/s0", plain, choices, ("test",), trial=where)


GOOD = [[0.99] * 4] * 4


@pytest.mark.parametrize("pruner", [pytest.param("median", marks=pytest.mark.full), "halving"])
def test_a_pruned_run_is_left_saved_and_becomes_the_full_one_bit_by_bit(tmp_path: Path, pruner: str) -> None:
    optuna_study = study(tmp_path / "study", pruner, GOOD)
    trial_task = task(tmp_path, optuna_study)
    outcome = execute.execute(trial_task)
    assert outcome.code == PAUSED
    left = RunFolder.open(tmp_path / trial_task.key)
    status = left.status
    assert (status.state, status.step, status.exit_code) == ("interrupted", 8, PAUSED)
    assert status.reason == outcome.reason
    assert status.reason is not None
    assert status.reason.startswith(f"pruned at step 8 by {pruner}: {METRIC} 0.")
    assert left.facts()[TRIAL] == {"study": "arm", "number": 4, "storage": trial_task.trial["storage"]}
    assert list(optuna_study.trials[4].intermediate_values) == [1]
    assert not left.summary()
    whole = run(tmp_path)
    assert whole.path == left.path
    assert whole.status.finished
    assert_same_bits(whole, run(tmp_path / "undisturbed"))


@pytest.mark.full
@pytest.mark.parametrize("pruner", ["none", "median"])
def test_a_good_trial_is_not_pruned_and_its_whole_curve_is_told(tmp_path: Path, pruner: str) -> None:
    optuna_study = study(tmp_path / "study", pruner, [[0.0] * 4] * 5)
    trial_task = task(tmp_path, optuna_study)
    assert execute.execute(trial_task).code == 0
    values = [row[METRIC] for row in RunFolder.open(tmp_path / trial_task.key).metrics.rows() if METRIC in row]
    assert optuna_study.trials[-1].intermediate_values == dict(enumerate(values, 1))
    assert len(values) == 4  # at 8, 16, 24 and 30 of 30 updates


@pytest.mark.full
def test_the_last_evaluation_prunes_nothing(tmp_path: Path) -> None:
    optuna_study = study(tmp_path / "study", "median", [[0.0, 0.0, 0.0, 1.0]] * 4)
    assert execute.execute(task(tmp_path, optuna_study)).code == 0


@pytest.mark.full
def test_a_trial_that_is_taken_up_tells_what_its_run_had_found_before(tmp_path: Path) -> None:
    assert killed_at(20, tmp_path) == -9
    optuna_study = study(tmp_path / "study", "median", [[0.0, 0.0, 0.99, 0.99]] * 4)
    trial_task = task(tmp_path, optuna_study)
    assert execute.execute(trial_task).code == PAUSED
    assert "step 24" in str(RunFolder.open(tmp_path / trial_task.key).status.reason)
    assert list(optuna_study.trials[-1].intermediate_values) == [1, 2, 3]


@pytest.mark.full
def test_a_record_that_does_not_answer_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optuna_study = study(tmp_path / "study", "median", GOOD)
    trial_task = task(tmp_path, optuna_study)
    (tmp_path / "study" / trial_store.FILE).write_bytes(b"no database")
    assert execute.execute(trial_task).code == 0
    assert caplog.text.count("is not pruned") == 1


def test_a_watcher_leaves_only_where_the_run_would_go_on(tmp_path: Path) -> None:
    optuna_study = study(tmp_path / "study", "median", GOOD)
    plain, choices = config(tmp_path)
    with create_run(plain, choices=choices) as folder:
        trial_task = task(tmp_path, optuna_study)
        (reporter,) = trial_callbacks(trial_task).values()
        live = RunState(None, "x", folder.checkpoints, 30, 20, 64, 16, "image", ("accuracy", "max"))  # type: ignore[arg-type]
        reporter.on_run_start(live)
        live.step, live.stop = 8, "early stopping says so"
        reporter.on_evaluate(live, {METRIC: 0.1})
        assert live.pause is None
        live.stop = None
        reporter.on_evaluate(live, {METRIC: 0.1})
        assert live.pause is not None
        assert trial_callbacks(Task(trial_task.key, plain)) == {}


@pytest.mark.full
def test_a_search_of_real_runs_ends_with_the_best_of_each_arm(tmp_path: Path) -> None:
    base = (*TINY, *steps(10, 5))
    optuna_study = plan(tmp_path, trials=2, base=base, sampler="random", pruner="median")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with LocalExecutor(workers=2) as executor:
            finished = search_runner.run_search(optuna_study, executor)
    assert len(finished.variants) == 2
    for arm in finished.facts["search"]["arms"].values():
        assert [trial["state"] for trial in arm["trials"]] == ["complete"] * 2
        assert every(len(trial["curve"]) == 2 for trial in arm["trials"])
        for trial in arm["trials"]:
            folder = RunFolder.open(tmp_path / trial["run"])
            assert folder.summary()["metrics"][METRIC] == trial["value"]
            assert folder.facts()[TRIAL]["number"] == trial["number"]
    first = finished.cells[0]
    assert RunFolder.open(finished.path(first)).finished
    assert RunFolder.open(finished.path(first)).config["optimizer"]["lr"] == finished.config(first)["optimizer"]["lr"]
    assert {arm.name for arm in ARMS} == set(finished.facts["search"]["arms"])


def _leave_at_once(folder: RunFolder) -> Any:
    from blockyard.engine.callbacks.base import RunCallback

    class Leaves(RunCallback):
        def on_run_start(self, live: RunState) -> None:
            live.pause = "nobody wants it"

    return train(folder, resume=folder.resumes, callbacks={"leaves": Leaves()})


def test_a_run_left_before_its_first_step_begins_later(tmp_path: Path) -> None:
    plain, choices = config(tmp_path)
    with create_run(plain, choices=choices) as folder:
        assert _leave_at_once(folder) == PAUSED
        assert str(folder.status) == "interrupted at step 0: nobody wants it"
    assert run(tmp_path).status.finished
