"""Executors: one cell, and what happens when its process dies."""

from __future__ import annotations

import os
import signal

import pytest

from blockyard.atomic_files import read_json
from blockyard.runs.lock import RunLock, held
from blockyard.runs.start import create_run
from blockyard.runs.status import read_status
from blockyard.sweep.cell.execute import execute
from blockyard.sweep.cells import BUSY, Outcome
from blockyard.sweep.executor.local import LocalExecutor
from tests.support.warm_servers import fork_servers, start_servers
from tests.sweep.executor_tasks import read_lock, task_of, until_ended
from tests.sweep.sweep_runs import plan, wait_for

pytestmark = pytest.mark.xdist_group("sweep_executors")


def test_a_cell_trains_once_and_writes_its_log(tmp_path, capfd):
    sweep_plan = plan(tmp_path, "callbacks=default")
    task = task_of(sweep_plan)
    assert execute(task) == Outcome(task.key, 0)
    path = sweep_plan.path(sweep_plan.cells[0])
    assert "val/accuracy" in (path / "log.txt").read_text()
    assert read_json(path / "run.json")["command"] == ["test"]
    assert execute(task) == Outcome(task.key, 0)
    assert read_json(path / "run.json")["resumes"] == []
    assert "".join(capfd.readouterr()) == ""


def test_a_run_that_another_process_holds_is_busy(tmp_path):
    sweep_plan = plan(tmp_path)
    path = sweep_plan.path(sweep_plan.cells[0])
    path.parent.mkdir(parents=True)
    lock = RunLock(path).acquire()
    assert execute(task_of(sweep_plan)).code == BUSY
    lock.release()


def test_a_failed_run_stays_failed_unless_it_is_retried(tmp_path):
    sweep_plan = plan(tmp_path)
    task = task_of(sweep_plan)
    with create_run(task.config) as folder:
        folder.set_status("failed", "a full disk", exit_code=1)
    assert execute(task) == Outcome(task.key, 1, "a full disk")
    assert execute(task_of(sweep_plan, retry=True)) == Outcome(task.key, 0)


def test_a_retry_whose_checkpoints_are_all_damaged_starts_anew(tmp_path):
    sweep_plan = plan(tmp_path)
    task = task_of(sweep_plan, retry=True)
    with create_run(task.config) as folder:
        (folder.checkpoints / "last.ckpt").write_bytes(b"half")
        folder.set_status("failed", "a full disk", exit_code=1)
    assert execute(task).code == 0
    assert list(sweep_plan.path(sweep_plan.cells[0]).parent.glob(".replaced-s0-*"))


def test_bad_input_that_only_a_run_detects_is_reported(tmp_path):
    sweep_plan = plan(tmp_path, changes={"pre_norm": {"trainer.accelerator": "gpu", "trainer.devices": 64}})
    outcome = execute(task_of(sweep_plan))
    assert outcome.code == 2
    assert "trainer.devices=64" in outcome.reason
    assert read_status(sweep_plan.path(sweep_plan.cells[0])).reason == outcome.reason


def test_a_plan_of_another_version_is_refused(tmp_path):
    sweep_plan = plan(tmp_path)
    outcome = execute(task_of(sweep_plan, config={"name": "other"}))
    assert outcome.code == 2
    assert "another version" in outcome.reason
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module", autouse=True)
def _servers_of_users():
    start_servers()
    yield
    fork_servers()


@pytest.fixture(scope="module")
def pool():
    with LocalExecutor(workers=2, gpus=None, threads=1) as executor:
        yield executor


SLOW = ("trainer.max_steps=100000", "trainer.max_epochs=null", "trainer.eval_every=20", "callbacks.checkpoint.every=20")


def test_a_killed_worker_loses_its_cell_only(pool, tmp_path):
    slow, quick = plan(tmp_path, *SLOW), plan(tmp_path)
    for sweep_plan in (slow, quick):
        pool.submit(task_of(sweep_plan))
    path = slow.path(slow.cells[0])
    wait_for(lambda: (path / "checkpoints" / "last.ckpt").exists())
    os.kill(int(read_lock(path)["pid"]), signal.SIGKILL)
    ended = until_ended(pool, 2)
    assert ended[quick.cells[0].run].code == 0
    lost = ended[slow.cells[0].run]
    assert (lost.code, lost.reason) == (-9, "killed by SIGKILL (out of memory?)")
    status = read_status(path)
    assert (status.state, status.reason) == ("interrupted", lost.reason)


@pytest.mark.full
def test_a_crash_is_a_failure(pool, tmp_path):
    sweep_plan = plan(tmp_path, *SLOW)
    pool.submit(task_of(sweep_plan))
    path = sweep_plan.path(sweep_plan.cells[0])
    wait_for(lambda: read_status(path).state == "running" and (path / "metrics.csv").exists())
    os.kill(int(read_lock(path)["pid"]), signal.SIGSEGV)
    (ended,) = until_ended(pool, 1).values()
    assert (ended.code, ended.reason) == (-11, "killed by SIGSEGV")
    assert read_status(path).state == "failed"


def with_limit(monkeypatch, seconds):
    monkeypatch.setattr("blockyard.sweep.executor.local._PATIENCE", 5.0)
    return LocalExecutor(workers=2, gpus=None, threads=1, timeout_min=seconds / 60)


@pytest.mark.full
def test_a_cell_beyond_its_time_saves_and_has_failed(tmp_path, pool, monkeypatch):
    """The others go on, and a retry takes it up where it was stopped. The time is over when the other has ended."""
    monkeypatch.setattr("blockyard.sweep.executor.local._PATIENCE", 60.0)
    slow, quick = plan(tmp_path, *SLOW), plan(tmp_path)
    path = slow.path(slow.cells[0])
    for sweep_plan in (slow, quick):
        pool.submit(task_of(sweep_plan))
    assert until_ended(pool, 1)[quick.cells[0].run].code == 0
    wait_for(lambda: held(path) and (path / "metrics.csv").exists())
    monkeypatch.setattr(pool, "_timeout_min", 0.001)
    stopped = until_ended(pool, 1)[slow.cells[0].run]
    assert (stopped.code, stopped.reason) == (
        1,
        "not done after executor.timeout_min=0.001 minutes: stopped, and what it saved is kept",
    )
    status = read_status(path)
    assert (status.state, status.reason, status.exit_code) == ("failed", stopped.reason, 1)
    assert status.step
    assert (path / "checkpoints" / "last.ckpt").exists()
    assert not held(path)


@pytest.mark.full
def test_a_cell_that_hangs_is_killed(tmp_path, pool, monkeypatch):
    """A stopped process neither saves nor ends by itself."""
    monkeypatch.setattr("blockyard.sweep.executor.local._PATIENCE", 2.0)
    sweep_plan = plan(tmp_path, *SLOW)
    path = sweep_plan.path(sweep_plan.cells[0])
    pool.submit(task_of(sweep_plan))
    wait_for(lambda: held(path) and (path / "metrics.csv").exists())
    os.kill(int(read_lock(path)["pid"]), signal.SIGSTOP)
    with monkeypatch.context() as limit:
        limit.setattr(pool, "_timeout_min", 0.001)
        (outcome,) = until_ended(pool, 1).values()
    assert outcome.reason.endswith("killed, because it did not react to SIGTERM")
    assert outcome.code == 1
    status = read_status(path)
    assert (status.state, status.reason) == ("failed", outcome.reason)
    pool.submit(task_of(plan(tmp_path), 1))  # the server serves on
    assert next(iter(until_ended(pool, 1).values())).code == 0


@pytest.mark.full
def test_a_server_that_hangs_is_killed_with_its_cells(tmp_path, monkeypatch):
    monkeypatch.setattr("blockyard.sweep.executor.local._KILL_PATIENCE", 1.0)
    monkeypatch.setattr("blockyard.sweep.executor._server_process._PATIENCE", 1.0)
    sweep_plan = plan(tmp_path, *SLOW)
    path = sweep_plan.path(sweep_plan.cells[0])
    with with_limit(monkeypatch, 6.0) as executor:
        executor.submit(task_of(sweep_plan))
        wait_for(lambda: held(path) and (path / "metrics.csv").exists())
        executor._server.process.send_signal(signal.SIGSTOP)
        (outcome,) = until_ended(executor, 1).values()
        assert "executor.timeout_min" in outcome.reason
    wait_for(lambda: not held(path))
    assert "SIGTERM" in read_status(path).reason


@pytest.mark.full
def test_a_killed_server_is_replaced_and_its_cells_save(tmp_path):
    sweep_plan = plan(tmp_path, *SLOW)
    path = sweep_plan.path(sweep_plan.cells[0])
    # Not `pool`: the new server works in the folder of this test, which is gone when the next one runs.
    with LocalExecutor(workers=2, gpus=None, threads=1) as executor:
        executor.submit(task_of(sweep_plan))
        wait_for(lambda: (path / "checkpoints" / "last.ckpt").exists())
        executor._server.process.kill()
        (ended,) = until_ended(executor, 1).values()
        assert ended.code == 143
        wait_for(lambda: not held(path))
        assert "SIGTERM" in read_status(path).reason
        again = plan(tmp_path)
        executor.submit(task_of(again))
        assert until_ended(executor, 1)[again.cells[0].run].code == 0


@pytest.mark.full
def test_a_cell_sees_its_threads_and_no_gpu(pool, tmp_path):
    sweep_plan = plan(tmp_path)
    pool.submit(task_of(sweep_plan))
    assert until_ended(pool, 1)[sweep_plan.cells[0].run].code == 0
    facts = read_json(sweep_plan.path(sweep_plan.cells[0]) / "run.json")
    assert facts["threads"]["threads"] == 1


@pytest.mark.full
def test_a_cell_of_two_processes(pool, tmp_path):
    sweep_plan = plan(tmp_path, "trainer=ddp", "trainer.accelerator=cpu", "trainer.precision=32", "trainer.max_steps=3")
    pool.submit(task_of(sweep_plan))
    assert until_ended(pool, 1)[sweep_plan.cells[0].run] == Outcome(sweep_plan.cells[0].run, 0)
    assert read_json(sweep_plan.path(sweep_plan.cells[0]) / "summary.json")["processes"] == 2


@pytest.mark.full
def test_cells_of_a_planner_that_is_gone_save_and_stop(tmp_path):
    sweep_plan = plan(tmp_path, *SLOW)
    path = sweep_plan.path(sweep_plan.cells[0])
    executor = LocalExecutor(workers=1, gpus=None)
    executor.submit(task_of(sweep_plan))
    wait_for(lambda: (path / "checkpoints" / "last.ckpt").exists())
    executor._server.socket.close()  # as the kernel does it
    assert executor._server.process.wait(600) == 0
    assert not held(path)
    assert "SIGTERM" in read_status(path).reason


@pytest.mark.full
def test_leaving_saves_what_runs(tmp_path):
    sweep_plan = plan(tmp_path, *SLOW)
    path = sweep_plan.path(sweep_plan.cells[0])
    with LocalExecutor(workers=1, gpus=None) as executor:
        executor.submit(task_of(sweep_plan))
        executor.submit(task_of(sweep_plan, 1))
        wait_for(lambda: (path / "checkpoints" / "last.ckpt").exists())
    status = read_status(path)
    assert status.state == "interrupted"
    assert "SIGTERM" in status.reason
    assert not sweep_plan.path(sweep_plan.cells[1]).exists()  # it never began
