"""A search tries the same number of settings for every arm, forgets none, and makes none twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from blockyard.atomic_files import write_yaml
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import RunLock
from blockyard.runs.status import Status, write_status
from blockyard.sweep.executor.base import BUSY, Outcome, Task
from blockyard.sweep.plan.sweep_plan import Arm, SweepPlan
from blockyard.sweep.plan.target_metric import validation_metric
from blockyard.sweep.search import optuna_store, search_runner
from tests.fork import server
from tests.sweep.search_runs import ARMS, PRUNED, Fake, peak, plan


def trials(found: SweepPlan, arm: str) -> list[Any]:
    return optuna.load_study(
        study_name=arm, storage=optuna_store.storage(optuna_store.storage_url(found.folder))
    ).get_trials()


def states(found: SweepPlan, arm: str) -> list[str]:
    return [trial.state.name for trial in trials(found, arm)]


def test_the_best_setting_of_each_arm_becomes_its_cells(tmp_path: Path) -> None:
    executor, said = Fake(), []
    found = search_runner.run_search(plan(tmp_path), executor, say=said.append)
    assert states(found, "pre") == states(found, "post") == ["COMPLETE"] * 6
    assert len(executor.tasks) == 12
    for arm in ("pre", "post"):
        best = max(trials(found, arm), key=lambda trial: trial.value)
        (variant,) = [v for v in found.variants.values() if v.arm == arm]
        assert variant.setting == best.user_attrs["setting"]
        assert variant.config["optimizer"]["lr"] == variant.setting["optimizer.lr"]
        cells = [cell for cell in found.cells if cell.variant == variant.key]
        assert [cell.seed for cell in cells] == [0, 1]
        assert cells[0].run == best.user_attrs["run"]  # the first seed is already done
        assert RunFolder.open(found.path(cells[0])).finished
        assert found.facts["search"]["arms"][arm]["chosen"] == variant.key
        assert len(found.facts["search"]["arms"][arm]["trials"]) == 6
    assert SweepPlan.load(found.folder).cells == found.cells
    assert sum("6 of 6 ended" in line for line in said) == 2
    assert found.facts["search"]["metric"] == "val/accuracy"


def test_random_tries_the_same_settings_for_every_arm_and_repeats_none_after_a_restart(tmp_path: Path) -> None:
    def settings(found: SweepPlan, arm: str) -> list[Any]:
        return [trial.user_attrs["setting"] for trial in trials(found, arm)]

    short = search_runner.run_search(plan(tmp_path, sampler="random", trials=3), Fake())
    longer = search_runner.run_search(plan(tmp_path, sampler="random", trials=6), Fake())
    assert settings(longer, "pre") == settings(longer, "post")
    assert settings(longer, "pre")[:3] == settings(short, "pre")[:3]
    assert len({str(setting) for setting in settings(longer, "pre")}) == 6
    again = Fake()
    search_runner.run_search(plan(tmp_path, sampler="random", trials=6), again)
    assert again.tasks == []


@pytest.mark.full
def test_tpe_learns_from_what_it_has_seen(tmp_path: Path) -> None:
    wide = {"optimizer.lr": {"low": 1e-6, "high": 1.0, "log": True}}
    for sampler in ("tpe", "random"):
        made = plan(tmp_path / sampler, trials=40, arms=ARMS[:1], space=wide, sampler=sampler)
        found = search_runner.run_search(made, Fake(capacity=1))
        values = [trial.value for trial in trials(found, "pre")]
        better = sum(values[20:]) / 20 > sum(values[:10]) / 10 + 0.04
        assert better == (sampler == "tpe")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (float("nan"), "val/accuracy is not a finite number"),
        pytest.param(float("inf"), "val/accuracy is not a finite number", marks=pytest.mark.full),
        ((1, "NotFinite: the loss is nan at step 3"), "the loss is nan at step 3"),
        pytest.param((2, "trainer.require_flash=true"), "require_flash", marks=pytest.mark.full),
        ((-9, "killed by SIGKILL (out of memory?)"), "out of memory"),
    ],
)
def test_a_run_that_fails_is_a_failed_trial_and_the_search_goes_on(tmp_path: Path, said: Any, reason: str) -> None:
    def score(config: dict[str, Any]) -> Any:
        return said if config["optimizer"]["lr"] > 0.003 else peak(config)

    executor = Fake(score)
    found = search_runner.run_search(plan(tmp_path, sampler="random", trials=6, arms=ARMS[:1]), executor)
    assert set(states(found, "pre")) == {"FAIL", "COMPLETE"}
    failed = [trial for trial in trials(found, "pre") if trial.state.name == "FAIL"]
    assert all(reason in trial.user_attrs["reason"] and "run" in trial.user_attrs for trial in failed)
    assert found.cells
    killed = isinstance(said, tuple) and said[0] < 0
    assert len(executor.tasks) == 6 + (len(failed) if killed else 0)  # a killed process gets a second chance
    assert sum(task.retry for task in executor.tasks) == (len(failed) if killed else 0)


def test_a_run_that_the_executor_lost_is_made_once_more(tmp_path: Path) -> None:
    class Losing(Fake):
        def end(self, task: Task) -> Outcome:
            path = Path(task.config["outputs"]) / task.key
            if path.exists():
                return super().end(task)
            write_status(path, Status("interrupted", "Ray lost the cell"))
            write_yaml(path / "config.yaml", task.config)
            return Outcome(task.key, 1, "Ray lost the cell")

    executor = Losing()
    found = search_runner.run_search(plan(tmp_path, sampler="random", trials=3, arms=ARMS[:1]), executor)
    assert states(found, "pre") == ["COMPLETE"] * 3
    assert len(executor.tasks) == 6


def test_an_arm_of_which_every_trial_fails_is_refused_with_the_reasons(tmp_path: Path) -> None:
    def score(config: dict[str, Any]) -> Any:
        return (1, "no luck") if "PostNorm" in config["block"]["_target_"] else peak(config)

    found = search_runner.run_search(plan(tmp_path, trials=2), Fake(score))
    assert {found.variants[cell.variant].arm for cell in found.cells} == {"pre"}
    (refused,) = found.refused
    assert refused.arm == "post"
    assert "no luck" in str(refused.reasons)


def test_what_check_refuses_is_a_failed_trial_with_the_reason_and_no_run(tmp_path: Path) -> None:
    executor = Fake()
    space = {"model.heads": [2, 3], "token_mixer.dropout": {"low": 0.0, "high": 0.5}}
    found = search_runner.run_search(plan(tmp_path, sampler="random", trials=8, space=space, arms=ARMS[:1]), executor)
    refused = [trial for trial in trials(found, "pre") if trial.params["model.heads"] == 3]
    assert refused
    assert all(trial.state.name == "FAIL" for trial in refused)
    assert all("does not divide" in trial.user_attrs["reason"] for trial in refused)
    assert len(executor.tasks) == 8 - len(refused)


def test_a_space_of_choices_ints_steps_and_families(tmp_path: Path) -> None:
    space = {
        "norm": ["layer", "rms"],
        "model.depth": {"low": 1, "high": 4, "int": True},
        "token_mixer.dropout": {"low": 0.0, "high": 0.3, "step": 0.1},
        "optimizer.betas": [[0.9, 0.95], [0.9, 0.999]],
        "trainer.gradient_clip": [None, 1.0],
    }
    found = search_runner.run_search(
        plan(tmp_path, sampler="random", trials=12, space=space, arms=ARMS[:1]), executor := Fake()
    )
    assert len({task.key for task in executor.tasks}) == len(executor.tasks)
    configs = [task.config for task in executor.tasks]
    assert {config["norm"]["_target_"].rsplit(".", 1)[-1] for config in configs} == {"Layer", "RMS"}
    assert {config["model"]["depth"] for config in configs} <= {1, 2, 3, 4}
    assert {config["token_mixer"]["dropout"] for config in configs} <= {0.0, 0.1, 0.2, 0.3}
    assert [0.9, 0.95] in [config["optimizer"]["betas"] for config in configs]
    assert {config["trainer"]["gradient_clip"] for config in configs} == {None, 1.0}
    assert {task.choices["norm"] for task in executor.tasks} == {"layer", "rms"}
    assert set(states(found, "pre")) == {"COMPLETE"}


def test_the_same_setting_again_counts_and_is_not_run_again(tmp_path: Path) -> None:
    space = {"optimizer.lr": [1e-3, 1e-2]}
    found = search_runner.run_search(
        plan(tmp_path, sampler="random", trials=7, space=space, arms=ARMS[:1]), executor := Fake()
    )
    assert len(executor.tasks) == 2
    assert states(found, "pre") == ["COMPLETE"] * 7
    assert len({trial.value for trial in trials(found, "pre")}) == 2


def test_a_pruned_trial_is_no_candidate(tmp_path: Path) -> None:
    def score(config: dict[str, Any]) -> Any:
        return PRUNED if config["optimizer"]["lr"] < 0.005 else peak(config)

    found = search_runner.run_search(plan(tmp_path, sampler="random", trials=8, arms=ARMS[:1]), Fake(score))
    assert set(states(found, "pre")) == {"PRUNED", "COMPLETE"}
    (variant,) = found.variants.values()
    assert variant.setting["optimizer.lr"] >= 0.005
    pruned = [t for t in found.facts["search"]["arms"]["pre"]["trials"] if t["state"] == "pruned"]
    assert all("pruned at step 8" in trial["reason"] for trial in pruned)


def test_a_metric_that_falls_is_minimised_and_one_that_is_not_measured_refused(tmp_path: Path) -> None:
    found = search_runner.run_search(plan(tmp_path, metric="test/loss", arms=ARMS[:1]), Fake())
    (variant,) = found.variants.values()
    best = min(trials(found, "pre"), key=lambda trial: trial.value)
    assert variant.setting == best.user_attrs["setting"]
    assert found.facts["search"]["metric"] == "val/loss"
    with pytest.raises(UserError, match=r"test/parameters is not measured on validation.*test/accuracy"):
        search_runner.run_search(plan(tmp_path, metric="test/parameters"), Fake())


def test_a_metric_at_longer_rows_is_known_where_the_base_asks_for_them() -> None:
    objective = {"_target_": "blockyard.objective.next_token.NextToken"}
    tokenizer = {"_target_": "blockyard.tokenizer.byte.Byte"}
    task = {"objective": objective, "tokenizer": tokenizer, "data": {"_target_": "blockyard.data.code.Code"}}
    config = task | {"trainer": {"extrapolate": [2, 4]}}
    assert validation_metric("test/loss@4x", config, []) == ("val/loss@4x", "min")
    assert validation_metric("test/accuracy@1x", config, []) == ("val/accuracy@1x", "max")
    with pytest.raises(UserError, match=r"test/loss@3x is not measured.*test/loss@1x, test/loss@2x, test/loss@4x"):
        validation_metric("test/loss@3x", config, [])
    with pytest.raises(UserError, match=r"base: \[trainer.extrapolate=\[2,4\]\] evaluates longer sequences"):
        validation_metric("test/loss@4x", task, [])


def test_without_a_search_the_plan_stays_as_it_is(tmp_path: Path) -> None:
    made = plan(tmp_path)
    made = replace(made, question=made.question | {"search": None})
    assert search_runner.run_search(made, Fake()) is made
    assert not list(tmp_path.iterdir())


# -- several processes, and what they leave behind --------------------------------------------------


class Stops(Exception):
    pass


def test_a_stopped_search_goes_on_with_the_trials_it_left(tmp_path: Path) -> None:
    made = plan(tmp_path, sampler="random", trials=5, arms=ARMS[:1])

    class Breaks(Fake):
        def poll(self, seconds: float) -> list[Any]:
            if len(self.tasks) > 3:
                raise Stops
            return super().poll(seconds)

    with pytest.raises(Stops):
        search_runner.run_search(made, first := Breaks())
    left = {task.key for task in first.waiting}
    assert left
    assert "RUNNING" in states(made, "pre")
    second = Fake()
    found = search_runner.run_search(made, second)
    assert states(found, "pre") == ["COMPLETE"] * 5
    assert left <= {task.key for task in second.tasks}
    assert not list(made.folder.glob(".search-*")), "the locks of the two are left"
    asked = Fake()
    assert search_runner.run_search(made, asked, stopped=lambda: True) is made
    assert not asked.tasks


def _searcher(outputs: Path, trials: int, seconds: float, done: Any) -> None:
    class Slow(Fake):
        def end(self, task: Task) -> Any:
            time.sleep(seconds)
            return super().end(task)

    executor = Slow(capacity=1)
    search_runner.run_search(plan(outputs, sampler="random", trials=trials, arms=ARMS[:1]), executor)
    done.put([task.key for task in executor.tasks])


def test_two_processes_share_one_budget_and_no_trial_is_made_twice(tmp_path: Path) -> None:
    context = server()
    done = context.Queue()
    both = [context.Process(target=_searcher, args=(tmp_path, 6, 0.3, done)) for _ in range(2)]
    for process in both:
        process.start()
    ran = [done.get(timeout=1800) for _ in both]
    for process in both:
        process.join(600)
        assert process.exitcode == 0
    assert len(ran[0]) + len(ran[1]) == 6
    assert not set(ran[0]) & set(ran[1])
    assert all(ran), "one process did it all"
    assert states(plan(tmp_path), "pre") == ["COMPLETE"] * 6


def test_a_killed_process_leaves_nothing_that_another_cannot_finish(tmp_path: Path) -> None:
    context = server()
    done = context.Queue()
    process = context.Process(target=_searcher, args=(tmp_path, 4, 0.5, done))
    process.start()
    made = plan(tmp_path, sampler="random", trials=4, arms=ARMS[:1])
    deadline = time.monotonic() + 1800
    while len(list(tmp_path.glob("*/s0/summary.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    before = states(made, "pre")
    assert "COMPLETE" in before
    found = search_runner.run_search(made, executor := Fake())
    # A kill between a trial and its values leaves one that is closed and does not count.
    assert [trial.state.name for trial in trials(found, "pre") if trial.params] == ["COMPLETE"] * 4
    assert len(executor.tasks) <= 4 - before.count("COMPLETE")


class Killed(BaseException):
    """No `except Exception` on the way sees it: so much is left to clean up as by a kill."""


@pytest.mark.parametrize(
    ("values", "sampler"),
    [(1, "tpe"), *(pytest.param(*case, marks=pytest.mark.full) for case in [(0, "tpe"), (0, "random"), (1, "random")])],
)
def test_a_kill_while_a_setting_is_drawn_costs_no_trial_and_changes_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: int, sampler: str
) -> None:
    space = {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}, "optimizer.weight_decay": [0.0, 0.1, 0.2]}
    # Five trials, more than TPE draws at first, and some values of the sixth.
    draw, left = optuna.Trial._suggest, iter(range(5 * 2 + values))

    def cut_off(self: Any, *args: Any) -> Any:
        if next(left, None) is None:
            raise Killed
        return draw(self, *args)

    def asked(outputs: Path) -> SweepPlan:
        return plan(outputs, sampler=sampler, trials=6, arms=ARMS[:1], space=space)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "_suggest", cut_off)
        with pytest.raises(Killed):
            search_runner.run_search(asked(tmp_path / "cut"), Fake(capacity=1))
    half = trials(asked(tmp_path / "cut"), "pre")[-1]
    assert len(half.params) == values
    assert not half.state.is_finished()

    said: list[str] = []
    found = search_runner.run_search(asked(tmp_path / "cut"), executor := Fake(capacity=1), say=said.append)
    assert not any("failed" in line for line in said)
    whole = search_runner.run_search(asked(tmp_path / "whole"), Fake(capacity=1))
    settings = [t.user_attrs["setting"] for t in trials(found, "pre") if t.state.name == "COMPLETE"]
    assert settings == [t.user_attrs["setting"] for t in trials(whole, "pre")]
    assert len(executor.tasks) == 1
    assert states(found, "pre").count("FAIL") == 1
    assert "RUNNING" not in states(found, "pre")


def test_a_run_that_another_process_has_is_waited_for(tmp_path: Path) -> None:
    made = plan(tmp_path, trials=1, arms=ARMS[:1])
    state: dict[str, Any] = {"said": 0}

    class Busy(Fake):
        def end(self, task: Task) -> Any:
            state["said"] += 1
            if state["said"] == 1:
                lock = RunLock(tmp_path / task.key)
                (tmp_path / task.key).parent.mkdir(parents=True, exist_ok=True)
                threading.Timer(1.5, lock.acquire().release).start()
                return Outcome(task.key, BUSY, "in use by process 1")
            return super().end(task)

    found = search_runner.run_search(made, Busy())
    assert states(found, "pre") == ["COMPLETE"]
    assert state["said"] == 2


def test_another_question_under_the_same_name_starts_anew_and_keeps_the_old_trials(tmp_path: Path) -> None:
    search_runner.run_search(plan(tmp_path, trials=2), Fake())
    other = (Arm("pre", ("block=pre_norm", "norm=rms")), ARMS[1])
    found = search_runner.run_search(plan(tmp_path, trials=2, arms=other), executor := Fake())
    assert len(executor.tasks) == 2  # only the arm that changed
    assert len(trials(found, "pre")) == len(trials(found, "pre until 1")) == 2
    less = search_runner.run_search(plan(tmp_path, trials=1, arms=other), Fake())
    assert less.facts["search"]["arms"]["pre"]["chosen"] == "pre#0"


def test_another_question_is_refused_while_somebody_searches(tmp_path: Path) -> None:
    made = plan(tmp_path, trials=2, arms=ARMS[:1])

    class Nested(Fake):
        def poll(self, seconds: float) -> list[Any]:
            with pytest.raises(UserError, match="another process searches pre"):
                search_runner.run_search(plan(tmp_path, space={"optimizer.lr": [1e-3]}, arms=ARMS[:1]), Fake())
            return super().poll(seconds)

    search_runner.run_search(made, Nested())
