"""The runner: what is missing is run, in order, once, whatever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from blockyard.atomic_files import read_json
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import InUseError, RunLock, held
from blockyard.runs.not_started import AlreadyDoneError, FailedBeforeError
from blockyard.runs.start import create_run
from blockyard.sweep.cell.states import read_progress, read_state
from blockyard.sweep.cells import BUSY, Cell, Outcome
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.executor.base import Executor
from blockyard.sweep.executor.local import LocalExecutor
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.support.every import every
from tests.sweep.sweep_runs import PATIENCE, at_work, figures, plan, planner, wait_for

pytestmark = pytest.mark.xdist_group("sweep_runner")


class Scripted(Executor):
    """Ends cells at once, without training. `fails` says of which; `busy` runs are somebody else's first."""

    capacity = 2

    def __init__(self, fails=(), busy=()):
        self.fails, self.busy = set(fails), set(busy)
        self.seen, self._ended, self.entered = [], deque(), 0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, *error):
        return None

    def submit(self, task):
        self.seen.append(task)
        self._ended.append(self._run(task))

    def poll(self, seconds):
        ended, self._ended = list(self._ended), deque()
        return ended

    def _run(self, task):
        if task.key in self.busy:
            self.busy.discard(task.key)
            return Outcome(task.key, BUSY, "somebody has it")
        try:
            with create_run(task.config, choices=task.choices, retry_failed=task.retry) as folder:
                if task.key in self.fails:
                    folder.set_status("failed", "scripted", exit_code=1)
                    return Outcome(task.key, 1, "scripted")
                folder.write_summary({"metrics": {"test/accuracy": 0.5}})
                folder.set_status("done", exit_code=0)
                return Outcome(task.key, 0)
        except AlreadyDoneError:
            return Outcome(task.key, 0)
        except FailedBeforeError as failed:
            return Outcome(task.key, 1, failed.reason)
        except InUseError as busy:
            return Outcome(task.key, BUSY, str(busy))


@pytest.fixture
def sweep_plan(tmp_path: Path) -> SweepPlan:
    return plan(tmp_path)


def named(sweep_plan: SweepPlan, executor: Scripted) -> list[tuple[str, int]]:
    by_run = {cell.run: (cell.variant, cell.seed) for cell in sweep_plan.cells}
    return [by_run[task.key] for task in executor.seen]


def test_first_seeds_first_and_the_baseline_before_the_others(sweep_plan):
    sweep_plan = replace(sweep_plan, question=sweep_plan.question | {"baseline": "post_norm"})
    executor, lines = Scripted(), []
    assert run_plan(sweep_plan, executor, say=lines.append) == 0
    assert named(sweep_plan, executor) == [("post_norm", 0), ("pre_norm", 0), ("post_norm", 1), ("pre_norm", 1)]
    assert executor.home == sweep_plan.folder
    assert executor.seen[0].command == ("blockyard", "sweep", "tiny.yaml")
    assert [line for line in lines if "[4/4] pre_norm s1 done test/accuracy 0.5" in line]


def test_a_second_time_nothing_is_started(sweep_plan):
    assert run_plan(sweep_plan, Scripted(), say=str) == 0
    again = Scripted()
    assert run_plan(sweep_plan, again, say=str) == 0
    assert (again.seen, again.entered) == ([], 0)


def test_a_failed_cell_does_not_end_a_sweep_that_goes_on_until_it_is_decided(tmp_path):
    """The same command again runs the rounds after it, without --retry."""
    sweep_plan = plan(tmp_path, seeds=(0, 1, 2, 3))
    sweep_plan.facts["metric"] = {"name": "test/accuracy", "validation": "val/accuracy", "direction": "max"}
    sweep_plan.question.update({"until": {"first": 2, "most": 4}, "seeds": [0, 1, 2, 3]})
    failing = next(cell.run for cell in sweep_plan.cells if cell.seed == 1)
    early = replace(sweep_plan, cells=[cell for cell in sweep_plan.cells if cell.seed < 2])
    assert run_plan(early, Scripted(fails=[failing]), say=str) == 1
    again = Scripted()
    assert run_plan(sweep_plan, again, say=str) == 1
    assert {seed for _, seed in named(sweep_plan, again)} == {2, 3}


def test_only_holes_are_filled(sweep_plan):
    first = replace(sweep_plan, cells=sweep_plan.cells[:1])
    assert run_plan(first, Scripted(), say=str) == 0
    rest = Scripted()
    assert run_plan(sweep_plan, rest, say=str) == 0
    assert len(rest.seen) == 3


def test_a_failing_cell_is_recorded_and_the_others_go_on(sweep_plan):
    bad, lines = sweep_plan.cells[0].run, []
    executor = Scripted(fails=[bad])
    assert run_plan(sweep_plan, executor, say=lines.append) == 1
    assert len(executor.seen) == 4
    assert read_state(sweep_plan.path(sweep_plan.cells[0])).reason == "scripted"
    assert any("pre_norm s0 failed" in line and "scripted" in line for line in lines)
    assert any("--retry" in line for line in lines)
    again = Scripted()
    assert run_plan(sweep_plan, again, say=str) == 1
    assert again.seen == []
    retried = Scripted()
    assert run_plan(sweep_plan, retried, say=str, retry=True) == 0
    assert [(task.key, task.retry) for task in retried.seen] == [(bad, True)]


def test_a_run_whose_process_dies_after_its_end_is_done(sweep_plan):
    class Dying(Scripted):
        def _run(self, task):
            return Outcome(super()._run(task).key, -9, "killed by SIGKILL (out of memory?)")

    assert run_plan(sweep_plan, Dying(), say=str) == 0


def test_a_run_in_the_plan_twice_is_run_once(sweep_plan):
    twice = replace(sweep_plan, cells=(*sweep_plan.cells, Cell("post_norm", 0, sweep_plan.cells[0].run)))
    executor = Scripted()
    assert run_plan(twice, executor, say=str) == 0
    assert len(executor.seen) == 4


def test_a_run_that_somebody_else_has_is_waited_for(sweep_plan, monkeypatch):
    monkeypatch.setattr("blockyard.sweep.execution.runner._LOOK", 0.0)
    executor = Scripted(busy=[sweep_plan.cells[0].run])
    assert run_plan(sweep_plan, executor, say=str) == 0  # given up by the other one, it is run here
    assert [task.key for task in executor.seen].count(sweep_plan.cells[0].run) == 2


def test_a_run_that_is_going_on_elsewhere_is_not_handed_out(sweep_plan, monkeypatch):
    monkeypatch.setattr("blockyard.sweep.execution.runner._LOOK", 0.0)
    path = sweep_plan.path(sweep_plan.cells[0])
    path.parent.mkdir(parents=True)
    lock = RunLock(path).acquire()
    executor = Scripted()
    poll = executor.poll

    def finish(seconds):
        if len(executor.seen) == 3 and lock.owned:
            lock.release()
        return poll(seconds)

    executor.poll = finish
    assert run_plan(sweep_plan, executor, say=str) == 0
    assert executor.seen[-1].key == sweep_plan.cells[0].run  # after all others, when it was let go


def test_settings_that_lost_are_not_run_on_further_seeds(sweep_plan):
    """Two settings of one arm on the first seed; the better one goes on. A choice waits for what may still come."""
    facts = {"metric": {"name": "test/accuracy", "validation": "val/accuracy", "direction": "max"}}
    variants = {key: replace(variant, arm="only") for key, variant in sweep_plan.variants.items()}
    arms = (replace(sweep_plan.arms[0], name="only"),)
    question = sweep_plan.question | {"tune": {"block": ["a", "b"]}, "tune_seeds": 1, "baseline": "only"}
    tuned = replace(sweep_plan, arms=arms, variants=variants, question=question, facts=facts)

    class Graded(Scripted):
        def _run(self, task):
            outcome = super()._run(task)
            folder = RunFolder.open(Path(task.config["outputs"]) / task.key)
            better = "PreNorm" in task.config["block"]["_target_"]
            folder.write_summary({"metrics": {"val/accuracy": 0.9 if better else 0.1}})
            return outcome

    executor = Graded()
    assert run_plan(tuned, executor, say=str) == 0
    assert named(tuned, executor) == [("pre_norm", 0), ("post_norm", 0), ("pre_norm", 1)]
    again = Graded()
    assert run_plan(tuned, again, say=str) == 0
    assert again.seen == []


def test_progress_of_a_running_run(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "step,train/loss,epoch,seconds,val/accuracy\n10,2.0,0.5,1.0,\n20,1.5,1,2.0,0.75\n30,1.0,1.5,3.0,\n4"
    )
    result = read_progress(tmp_path, {"trainer": {"max_steps": None, "max_epochs": 3}}, "val/accuracy")
    assert (result.fraction, result.seconds_left, result.value) == (0.5, 3.0, 0.75)
    assert read_progress(tmp_path / "none", {}, "val/accuracy").fraction is None


# -- real cells in real processes ---------------------------------------------------------------------

LONG = ("trainer.max_steps=160", "trainer.eval_every=40", "trainer.log_every=20", "token_mixer.dropout=0.1")
THREE = {"arms": {"pre_norm": ["block=pre_norm"]}, "seeds": (0, 1, 2)}  # cells for two workers: one waits


class Kept(LocalExecutor):
    """Stays warm from one sweep to the next."""

    def __exit__(self, *error):
        assert not self._running


@pytest.fixture(scope="module")
def kept():
    executor = Kept(workers=2, gpus=None, threads=1)
    yield executor
    LocalExecutor.__exit__(executor)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, kept):
    result = plan(tmp_path_factory.mktemp("undisturbed"), *LONG, **THREE)
    assert run_plan(result, kept, say=str, live=False) == 0
    return figures(result)


def finish(sweep_plan: SweepPlan) -> None:
    """The same command until it has nothing left to do: it may find a worker that still saves."""
    process = planner(sweep_plan)
    message = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, message


def assert_done_once(sweep_plan: SweepPlan, undisturbed) -> None:
    """Every cell is done, none was begun anew, and all figures are the same to the last bit."""
    assert figures(sweep_plan) == undisturbed
    assert not list(Path(sweep_plan.outputs).glob("*/.replaced-*"))
    assert not any(held(sweep_plan.path(cell)) for cell in sweep_plan.cells)


def disturb(sweep_plan: SweepPlan, kills: int, seed: int) -> list[str]:
    """SIGKILL the planner or one of its workers at random moments, the same command after each; whom it struck."""
    chance, struck, process = random.Random(seed), [], planner(sweep_plan)
    while len(struck) < kills:
        wait_for(lambda now=process: now.poll() is not None or at_work(sweep_plan), PATIENCE)
        if process.poll() is not None:  # it ended with what was left of it
            if all(read_state(sweep_plan.path(cell)).state == "done" for cell in sweep_plan.cells):
                break
            process.communicate()
            process = planner(sweep_plan)
            continue
        time.sleep(chance.uniform(0.0, 0.6))
        workers = at_work(sweep_plan)
        if workers and chance.random() < 0.5:
            os.kill(chance.choice(workers), signal.SIGKILL)
            struck.append("worker")
        else:
            process.kill()
            process.communicate()
            process = planner(sweep_plan)
            struck.append("planner")
    process.kill()
    process.communicate()
    return struck


@pytest.mark.full
def test_kills_of_planner_and_workers_change_nothing(tmp_path, undisturbed):
    sweep_plan = plan(tmp_path, *LONG, **THREE)
    sweep_plan.save()
    assert disturb(sweep_plan, 3, seed=4)
    finish(sweep_plan)
    assert_done_once(sweep_plan, undisturbed)


@pytest.mark.full
def test_twenty_kills_of_planner_and_workers_change_nothing(tmp_path):
    longer = [override.replace("=160", "=400") for override in LONG]
    calm, sweep_plan = (plan(tmp_path / name, *longer, seeds=(0, 1, 2)) for name in ("calm", "disturbed"))
    calm.save()
    sweep_plan.save()
    finish(calm)
    struck = disturb(sweep_plan, 20, seed=1)
    assert len(struck) == 20
    assert set(struck) == {"planner", "worker"}
    finish(sweep_plan)
    assert_done_once(sweep_plan, figures(calm))


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path, undisturbed, kept):
    sweep_plan, lines = plan(tmp_path, *LONG, **THREE), []

    def strike():
        wait_for(lambda: at_work(sweep_plan))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=strike)
    thread.start()
    assert run_plan(sweep_plan, LocalExecutor(workers=2, gpus=None, threads=1), say=lines.append, live=False) == 130
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopped by SIGINT" in lines[-1]
    assert not at_work(sweep_plan)
    states = [read_state(sweep_plan.path(cell)) for cell in sweep_plan.cells]
    assert any(status.state == "interrupted" and "SIGTERM" in status.reason for status in states)
    assert run_plan(sweep_plan, kept, say=str, live=False) == 0
    assert_done_once(sweep_plan, undisturbed)


@pytest.mark.full
def test_two_planners_at_once_and_the_end_of_one(tmp_path, undisturbed):
    sweep_plan = plan(tmp_path, *LONG, **THREE)
    sweep_plan.save()
    first, second = planner(sweep_plan), planner(sweep_plan)
    wait_for(lambda: at_work(sweep_plan))
    time.sleep(0.2)
    first.send_signal(signal.SIGTERM)
    message = first.communicate(timeout=PATIENCE)[0]
    assert first.returncode == 143, message
    message = second.communicate(timeout=PATIENCE)[0]
    assert second.returncode == 0, message
    assert_done_once(sweep_plan, undisturbed)
    for cell in sweep_plan.cells:  # the second one took over what the first one left, where it stood
        turns = read_json(sweep_plan.path(cell) / "run.json")["resumes"]
        assert every("interrupted" in resume["was"] for resume in turns)
