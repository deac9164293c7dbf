"""A search that is stopped, killed or shared by processes forgets no trial and makes none twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest

from blockyard.errors import UserError
from blockyard.runs.lock import RunLock
from blockyard.sweep.cells import BUSY, Arm, Outcome, Task
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import search_runner
from tests.support.every import every
from tests.support.fork import server
from tests.sweep.search_runs import ARMS, Fake, plan, states, trials


class Stops(Exception):
    pass


def test_a_stopped_search_goes_on_with_the_trials_it_left(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path, sampler="random", trials=5, arms=ARMS[:1])

    class Breaks(Fake):
        def poll(self, seconds: float) -> list[Any]:
            if len(self.tasks) > 3:
                raise Stops
            return super().poll(seconds)

    with pytest.raises(Stops):
        search_runner.run_search(sweep_plan, first := Breaks())
    left = {task.key for task in first.waiting}
    assert left
    assert "RUNNING" in states(sweep_plan, "pre")
    second = Fake()
    finished = search_runner.run_search(sweep_plan, second)
    assert states(finished, "pre") == ["COMPLETE"] * 5
    assert left <= {task.key for task in second.tasks}
    assert not list(sweep_plan.folder.glob(".search-*")), "the locks of the two are left"
    executor = Fake()
    assert search_runner.run_search(sweep_plan, executor, stopped=lambda: True) is sweep_plan
    assert not executor.tasks


def _searcher(outputs: Path, trials: int, seconds: float, done: Any) -> None:
    class Slow(Fake):
        def end(self, task: Task) -> Any:
            time.sleep(seconds)
            return super().end(task)

    executor = Slow(capacity=1)
    search_runner.run_search(plan(outputs, sampler="random", trials=trials, arms=ARMS[:1]), executor)
    done.put([task.key for task in executor.tasks])


@pytest.mark.full
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
    assert every(ran), "one process did it all"
    assert states(plan(tmp_path), "pre") == ["COMPLETE"] * 6


@pytest.mark.full
def test_a_killed_process_leaves_nothing_that_another_cannot_finish(tmp_path: Path) -> None:
    context = server()
    done = context.Queue()
    process = context.Process(target=_searcher, args=(tmp_path, 4, 0.5, done))
    process.start()
    sweep_plan = plan(tmp_path, sampler="random", trials=4, arms=ARMS[:1])
    deadline = time.monotonic() + 1800
    while len(list(tmp_path.glob("*/s0/summary.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    before = states(sweep_plan, "pre")
    assert "COMPLETE" in before
    finished = search_runner.run_search(sweep_plan, executor := Fake())
    # A kill between a trial and its values leaves one that is closed and does not count.
    assert [trial.state.name for trial in trials(finished, "pre") if trial.params] == ["COMPLETE"] * 4
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

    def question_plan(outputs: Path) -> SweepPlan:
        return plan(outputs, sampler=sampler, trials=6, arms=ARMS[:1], space=space)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "_suggest", cut_off)
        with pytest.raises(Killed):
            search_runner.run_search(question_plan(tmp_path / "cut"), Fake(capacity=1))
    half = trials(question_plan(tmp_path / "cut"), "pre")[-1]
    assert len(half.params) == values
    assert not half.state.is_finished()

    lines: list[str] = []
    finished = search_runner.run_search(question_plan(tmp_path / "cut"), executor := Fake(capacity=1), say=lines.append)
    assert not any("failed" in line for line in lines)
    whole = search_runner.run_search(question_plan(tmp_path / "whole"), Fake(capacity=1))
    settings = [t.user_attrs["setting"] for t in trials(finished, "pre") if t.state.name == "COMPLETE"]
    assert settings == [t.user_attrs["setting"] for t in trials(whole, "pre")]
    assert len(executor.tasks) == 1
    assert states(finished, "pre").count("FAIL") == 1
    assert "RUNNING" not in states(finished, "pre")


@pytest.mark.full
def test_a_run_that_another_process_has_is_waited_for(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path, trials=1, arms=ARMS[:1])
    state: dict[str, Any] = {"messages": 0}

    class Busy(Fake):
        def end(self, task: Task) -> Any:
            state["messages"] += 1
            if state["messages"] == 1:
                lock = RunLock(tmp_path / task.key)
                (tmp_path / task.key).parent.mkdir(parents=True, exist_ok=True)
                threading.Timer(1.5, lock.acquire().release).start()
                return Outcome(task.key, BUSY, "in use by process 1")
            return super().end(task)

    finished = search_runner.run_search(sweep_plan, Busy())
    assert states(finished, "pre") == ["COMPLETE"]
    assert state["messages"] == 2


@pytest.mark.full
def test_another_question_under_the_same_name_starts_anew_and_keeps_the_old_trials(tmp_path: Path) -> None:
    search_runner.run_search(plan(tmp_path, trials=2), Fake())
    other = (Arm("pre", ("block=pre_norm", "norm=rms")), ARMS[1])
    finished = search_runner.run_search(plan(tmp_path, trials=2, arms=other), executor := Fake())
    assert len(executor.tasks) == 2  # only the arm that changed
    assert len(trials(finished, "pre")) == len(trials(finished, "pre until 1")) == 2
    less = search_runner.run_search(plan(tmp_path, trials=1, arms=other), Fake())
    assert less.facts["search"]["arms"]["pre"]["chosen"] == "pre#0"


def test_another_question_is_refused_while_somebody_searches(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path, trials=2, arms=ARMS[:1])

    class Nested(Fake):
        def poll(self, seconds: float) -> list[Any]:
            with pytest.raises(UserError, match="another process searches pre"):
                search_runner.run_search(plan(tmp_path, space={"optimizer.lr": [1e-3]}, arms=ARMS[:1]), Fake())
            return super().poll(seconds)

    search_runner.run_search(sweep_plan, Nested())
