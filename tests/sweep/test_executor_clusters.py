"""The Ray and SLURM executors find what the local one does."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from blockyard.atomic_files import read_json
from blockyard.runs.metrics import read_metrics
from blockyard.sweep.cells import Outcome
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.executor import build
from tests.sweep.executor_tasks import read_lock, task_of, until_ended
from tests.sweep.sweep_runs import figures, plan, wait_for

pytestmark = pytest.mark.xdist_group("sweep_executors")


EVEN = ("trainer.max_steps=400", "trainer.max_epochs=null", "trainer.eval_every=100", "trainer.log_every=10")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What the cells find in this process."""
    sweep_plan = plan(tmp_path_factory.mktemp("here"), *EVEN)
    assert run_plan(sweep_plan, build("slurm", {"cluster": "debug"}), say=str) == 0
    return figures(sweep_plan)


@pytest.mark.full
def test_ray_finds_the_same(tmp_path, here, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("HOME", str(tmp_path))  # in which Ray keeps a token
    sweep_plan = plan(tmp_path, *EVEN)
    assert run_plan(sweep_plan, build("ray", {}, workers=2), say=str) == 0
    assert figures(sweep_plan) == here


@pytest.mark.full
def test_a_job_of_submitit_that_is_cut_off_goes_on_and_finds_the_same(tmp_path, here):
    """Told by submitit's signal, a job saves, and its next turn goes on to the end."""
    sweep_plan = plan(tmp_path, *EVEN)
    key, path = sweep_plan.cells[0].run, sweep_plan.path(sweep_plan.cells[0])
    with build("slurm", {"cluster": "local"}) as executor:
        executor.home = sweep_plan.folder
        executor.submit(task_of(sweep_plan))
        executor.poll(0.0)
        wait_for(lambda: (path / "metrics.csv").exists() and len(read_metrics(path / "metrics.csv")) > 3)
        os.kill(int(read_lock(path)["pid"]), signal.SIGUSR2)
        assert until_ended(executor, 1)[key] == Outcome(key, 0)
    (resume,) = read_json(path / "run.json")["resumes"]
    assert "SIGTERM" in resume["was"]
    assert list((sweep_plan.folder / "submitit").glob("*/*_submitted.pkl"))
    only = replace(sweep_plan, cells=sweep_plan.cells[:1])
    assert figures(only) == {("pre_norm", 0): here["pre_norm", 0]}


def test_a_cell_whose_node_died_starts_again_a_few_times(tmp_path, monkeypatch, caplog):
    errors = pytest.importorskip("ray").exceptions
    sweep_plan = plan(tmp_path)
    task, again = task_of(sweep_plan), []
    executor = build("ray", {"retries": 3})
    monkeypatch.setattr(executor, "submit", again.append)
    died = errors.NodeDiedError("Task failed because the node is dead. Node IP: 127.0.0.2,\nand more")
    for error in (died, errors.WorkerCrashedError(), errors.OutOfMemoryError("no memory"), died):
        executor._lost(task, error)
    assert again == [task, task, task]
    (outcome,) = executor.poll(0.0)
    assert outcome == Outcome(task.key, 143, "Ray lost the cell: NodeDiedError: Task failed because the node is dead")
    assert caplog.text.count(f"{task.key} goes on elsewhere: ") == 3
    executor._lost(task_of(sweep_plan, 1), errors.RuntimeEnvSetupError("no such package"))
    assert "no such package" in executor.poll(0.0)[0].reason
    assert len(again) == 3
