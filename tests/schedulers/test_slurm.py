"""Sweeps on a real SLURM without GPUs and without accounting: requeued, cancelled, cut off, found again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_json
from blockyard.runs.lock import holder
from tests.schedulers.processes import wait_for
from tests.schedulers.slurm_cluster import CPUS, SlurmCluster
from tests.schedulers.sweep_commands import ARMS, PATIENCE, Sweep, assert_equal_sweeps
from tests.support.every import every

pytestmark = [pytest.mark.schedulers, pytest.mark.timeout(3600)]
pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture
def sweep(cluster: SlurmCluster, tmp_path: Path) -> Iterator[Sweep]:
    """Two cells on the cluster, whose queue is empty before and after."""
    assert cluster.jobs() == {}
    yield on(cluster, tmp_path)
    left = cluster.jobs()
    cluster.clear()
    assert left == {}


def on(cluster: SlurmCluster, folder: Path, **options: Any) -> Sweep:
    overrides = ("executor=slurm", "executor.cpus_per_task=1")
    return Sweep(folder, *overrides, environment=cluster.environment, **({"seeds": 1} | options))


def jobs_of(sweep: Sweep) -> dict[str, str]:
    """The job of every run."""
    return dict(read_json(sweep.outputs / "sweeps" / "q" / "submitit" / "jobs.json"))


def submissions(sweep: Sweep) -> int:
    """How often sbatch was called."""
    return len(list((sweep.outputs / "sweeps" / "q" / "submitit").glob("*_submission.sh")))


def test_a_sweep_equals_the_local_one(cluster: SlurmCluster, tmp_path: Path, here: Sweep) -> None:
    assert "gpu" not in cluster.command("sinfo", "-h", "-o", "%G")
    sweep = on(cluster, tmp_path, seeds=2)
    printed = sweep.run()  # trainer.accelerator is auto: a GPU is requested wherever there is one
    assert "4 done" in printed
    assert cluster.jobs() == {}
    assert_equal_sweeps(sweep, here)
    sweep.run()
    assert submissions(sweep) == 1


def test_requeued_and_signalled_jobs_go_on(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    process = sweep.start()
    first = sweep.until_training()
    cluster.command("scontrol", "requeue", jobs_of(sweep)[sweep.name(first)])
    second = sweep.until_training(but=[first])
    cluster.command("scancel", "--signal=USR2", jobs_of(sweep)[sweep.name(second)])
    sweep.wait(process, 0)
    assert cluster.jobs() == {}
    assert_equal_sweeps(sweep, here)
    assert [len(resumes) for resumes in sweep.resumes().values()] == [1, 1]
    assert submissions(sweep) == 1


def test_preempted_jobs_go_on(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    process = sweep.start()
    preempted = sweep.until_training()
    cluster.command("sbatch", "--partition=urgent", f"--ntasks={CPUS}", "--wrap=sleep 2", "--output=/dev/null")
    sweep.wait(process, 0)
    assert cluster.jobs() == {}
    assert_equal_sweeps(sweep, here)
    assert len(sweep.resumes()[sweep.name(preempted)]) == 1
    assert submissions(sweep) == 1


FOUND = "jobs of an earlier command that are in SLURM's queue and go on: 2"


def kill_the_planner(sweep: Sweep, cluster: SlurmCluster) -> str:
    """Kill a planner that has one job running and one waiting; the running one, which stands still until SIGCONT."""
    process = sweep.start("executor.workers=1")
    training = sweep.until_training()
    running = jobs_of(sweep)[sweep.name(training)]
    cluster.command("scancel", "--signal=STOP", running)
    process.kill()
    process.wait()
    assert sorted(cluster.jobs().values()) == ["PENDING", "STOPPED"]
    return running


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
def test_a_new_planner_finds_the_jobs_of_a_killed_one(
    sweep: Sweep, here: Sweep, cluster: SlurmCluster, recorded: bool
) -> None:
    running = kill_the_planner(sweep, cluster)
    if not recorded:  # killed between sbatch and its own note
        (sweep.outputs / "sweeps" / "q" / "submitit" / "jobs.json").unlink()
    process = sweep.start("executor.workers=1")
    wait_for(lambda: FOUND in sweep.log.read_text(), PATIENCE)
    cluster.command("scancel", "--signal=CONT", running)
    sweep.wait(process, 0)
    assert cluster.jobs() == {}
    assert submissions(sweep) == 1
    assert_equal_sweeps(sweep, here)
    assert every(resumes == [] for resumes in sweep.resumes().values())


def test_ctrl_c_cancels_the_jobs_of_a_killed_planner_too(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    kill_the_planner(sweep, cluster)
    process = sweep.start("executor.workers=1")
    wait_for(lambda: FOUND in sweep.log.read_text(), PATIENCE)
    process.send_signal(signal.SIGINT)
    sweep.wait(process, 130)
    assert cluster.jobs() == {}
    assert list(sweep.states().values()) == ["interrupted"]
    sweep.run()
    assert_equal_sweeps(sweep, here)


def test_cancelled_and_killed_jobs_are_reported(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    process = sweep.start()
    first = sweep.until_training()
    cluster.command("scancel", jobs_of(sweep)[sweep.name(first)])
    second = sweep.until_training(but=[first])
    os.kill(int(str((holder(second) or {})["pid"])), signal.SIGKILL)
    printed = sweep.wait(process, 1)
    assert cluster.jobs() == {}
    assert f"job {jobs_of(sweep)[sweep.name(first)]} ended as CANCELLED" in printed
    assert f"job {jobs_of(sweep)[sweep.name(second)]} ended as FAILED" in printed
    assert set(sweep.states().values()) == {"interrupted"}
    sweep.run()  # the same command resumes both
    assert_equal_sweeps(sweep, here)


def test_a_failing_cell_leaves_the_others(cluster: SlurmCluster, tmp_path: Path) -> None:
    sweep = on(cluster, tmp_path, arms={"none": ARMS["none"], "nan": "[position=none, optimizer.lr=1e30]"})
    printed = sweep.run(code=1)
    assert cluster.jobs() == {}
    assert sorted(sweep.states().values()) == ["done", "failed"]
    assert "1 done, 1 failed" in printed


def test_a_job_out_of_its_time_goes_on(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    """A job that makes no progress until its time limit cannot save in time; it is not lost either."""
    process = sweep.start("executor.timeout_min=1", "executor.signal_delay_s=1")
    stopped = sweep.until_training()
    cluster.command("scancel", "--signal=STOP", jobs_of(sweep)[sweep.name(stopped)])
    sweep.wait(process, 0)
    assert cluster.jobs() == {}
    assert_equal_sweeps(sweep, here)
    assert len(sweep.resumes()[sweep.name(stopped)]) >= 1


def test_a_cell_that_is_out_of_time_too_often_is_reported(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    process = sweep.start("executor.timeout_min=9", "executor.requeues=0")  # submitit's last 10 minutes are the end
    stopped = sweep.until_training()
    cluster.command("scancel", "--signal=USR2", jobs_of(sweep)[sweep.name(stopped)])
    printed = sweep.wait(process, 1)
    assert cluster.jobs() == {}
    assert f"job {jobs_of(sweep)[sweep.name(stopped)]}: " in printed
    assert "timed-out too many times" in printed
    assert sorted(sweep.states().values()) == ["done", "interrupted"]
    sweep.run()
    assert_equal_sweeps(sweep, here)


def test_a_restart_of_the_controller_changes_nothing(sweep: Sweep, here: Sweep, cluster: SlurmCluster) -> None:
    process = sweep.start()
    sweep.until_training()
    cluster.stop_controller()
    try:
        wait_for(lambda: "squeue does not answer" in sweep.log.read_text(), PATIENCE)
    finally:
        cluster.start_controller()
    sweep.wait(process, 0)
    assert cluster.jobs() == {}
    assert_equal_sweeps(sweep, here)
    assert submissions(sweep) == 1


def test_a_partition_that_does_not_exist_starts_nothing(sweep: Sweep, cluster: SlurmCluster) -> None:
    printed = sweep.run("executor.partition=nowhere", code=2)
    assert "executor.partition: SLURM has no partition nowhere; it has " in printed
    assert sweep.runs == {}
    assert cluster.jobs() == {}


def test_what_sbatch_refuses_starts_nothing(sweep: Sweep, cluster: SlurmCluster) -> None:
    printed = sweep.run("executor.constraint=nothing", code=2)
    assert "executor: submitit refused the jobs: " in printed
    assert sweep.runs == {}
    assert cluster.jobs() == {}
