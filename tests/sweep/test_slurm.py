"""SLURM: what sbatch is asked for, how jobs are followed without accounting, and that none outlives the sweep."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.sweep.executor import build
from blockyard.sweep.executor.base import Outcome, Task
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.sweep.sweep_runs import PATIENCE, plan

submitit = pytest.importorskip("submitit")


class Cluster:
    """A SLURM of shell scripts on PATH, which record how they are called. Jobs are 77_0, 77_1, ..."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools"
        self.tools.mkdir()
        self.home = folder / "home"
        self.script("sbatch", 'cp "$1" "$here/script.sh"\necho Submitted batch job 77')
        self.script("srun", "")
        self.script("sacct", "echo 'JobID|State'")
        self.script("scancel", "")
        self.script("squeue", "")
        self.script("sinfo", "echo 'main*|gpu:a100:4(S:0-1)'")

    def script(self, name: str, body: str) -> None:
        """Put a command on PATH; `$here` is its folder and `$call` the number of this call."""
        path = self.tools / name
        head = f'#!/bin/sh\nhere="$(dirname "$0")"\necho "$@" >> "$here/{name}.log"\n'
        path.write_text(f'{head}call=$(wc -l < "$here/{name}.log")\n{body}\n')
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """The arguments of each call of a command."""
        log = self.tools / f"{name}.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def submitted(self) -> str:
        """The last script that sbatch got."""
        return (self.tools / "script.sh").read_text()

    def executor(self, **options: Any) -> Any:
        executor = build("slurm", options)
        executor.home = self.home
        return executor

    def end(self, number: int, key: str) -> None:
        """Leave the result of a job as submitit's process does."""
        result = self.home / "submitit" / f"77_{number}_0_result.pkl"
        result.write_bytes(pickle.dumps(("success", Outcome(key, 0))))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster(tmp_path)
    monkeypatch.setenv("PATH", str(found.tools), prepend=os.pathsep)
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 0)
    monkeypatch.setattr(submitit.SlurmJob, "watcher", type(submitit.SlurmJob.watcher)(delay_s=600))
    return found


@pytest.fixture
def made(tmp_path: Path) -> SweepPlan:
    return plan(tmp_path / "outputs")


def task_of(made: SweepPlan, index: int = 0, **trainer: Any) -> Task:
    config = made.config(made.cells[index])
    return Task(made.cells[index].run, config | {"trainer": config["trainer"] | trainer})


def wait_for_outcomes(executor: Any, count: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + PATIENCE
    while len(outcomes) < count:
        assert time.monotonic() < deadline, outcomes
        outcomes += executor.poll(0.1)
    return outcomes


def test_options_reach_sbatch_and_jobs_are_recorded(cluster: Cluster, made: SweepPlan) -> None:
    options = {"partition": "gpu", "account": "lab", "gpus_per_node": 1, "mem_gb": 32, "timeout_min": 90, "workers": 2}
    more = {"setup": ["module load cuda"], "sbatch": ["mail-type=END"], "constraint": "a100", "cancel": False}
    with cluster.executor(**options, **more) as executor:
        for index in range(4):
            executor.submit(task_of(made, index))
        executor.poll(0.0)
    for option in ("partition=gpu", "account=lab", "gpus-per-node=1", "mem=32GB", "time=90", "array=0-3%2"):
        assert f"#SBATCH --{option}\n" in cluster.submitted
    for option in ("mail-type=END", "constraint=a100", "signal=USR2@120", "cpus-per-task=4", "nodes=1"):
        assert f"#SBATCH --{option}\n" in cluster.submitted
    assert "\nmodule load cuda\n" in cluster.submitted
    jobs = read_json(cluster.home / "submitit" / "jobs.json")
    assert jobs == {cell.run: f"77_{number}" for number, cell in enumerate(made.cells)}


@pytest.mark.parametrize(
    ("sinfo", "partition", "requested"),
    [
        ("echo 'main*|(null)'", None, False),
        ("echo 'main*|gpu:a100:4(S:0-1)'", None, True),
        ("echo 'main*|(null)'; echo 'gpus|gpu:4'", None, False),  # the default partition counts
        ('[ "$5" = gpus ] && echo "gpus|nvme:1,gpu:4"', "gpus", True),
        ('[ "$5" = cpus ] && echo "cpus|lscratch:100"', "cpus", False),
        ("exit 1", None, True),  # nobody knows, so sbatch decides
    ],
)
def test_gpus_are_requested_only_where_the_partition_has_some(
    cluster: Cluster, made: SweepPlan, sinfo: str, partition: str | None, requested: bool
) -> None:
    cluster.script("sinfo", sinfo)
    with cluster.executor(partition=partition, cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(made, index, accelerator="auto"))
        executor.poll(0.0)
    assert ("gpus-per-node=1" in cluster.submitted) == requested


def test_a_number_of_gpus_is_passed_on_without_asking(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("sinfo", "echo 'main*|(null)'")
    with cluster.executor(gpus_per_node=2, cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(made, index, accelerator="auto"))
        executor.poll(0.0)
    assert "gpus-per-node=2" in cluster.submitted
    assert cluster.calls("sinfo") == []


def test_a_cell_that_needs_a_gpu_is_refused_where_there_is_none(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("sinfo", "echo 'cpus|(null)'")
    with cluster.executor(partition="cpus") as executor:
        executor.submit(task_of(made, accelerator="gpu"))
        (outcome,) = executor.poll(0.0)
    assert outcome.code == 2
    assert "trainer.accelerator=gpu: partition cpus of SLURM has no GPU" in str(outcome.reason)
    assert cluster.calls("sbatch") == []


def test_the_executor_waits_until_finished_jobs_have_left_the_queue(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("squeue", '[ "$call" -le 3 ] && echo "77_0 COMPLETING"; echo "78 RUNNING"')
    with cluster.executor() as executor:
        for index in range(2):
            executor.submit(task_of(made, index))
        executor.poll(0.0)
        for index in range(2):
            cluster.end(index, made.cells[index].run)
        assert {outcome.code for outcome in wait_for_outcomes(executor, 2)} == {0}
    assert len(cluster.calls("squeue")) == 4
    assert cluster.calls("scancel") == []


def test_a_job_that_does_not_end_after_its_result_is_cancelled(
    cluster: Cluster, made: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockyard.sweep.executor import slurm

    monkeypatch.setattr(slurm, "_PATIENCE", 0.0)
    cluster.script("squeue", '[ -e "$here/scancel.log" ] || echo "77_1 RUNNING"')
    with cluster.executor() as executor:
        for index in range(2):
            executor.submit(task_of(made, index))
        executor.poll(0.0)
        for index in range(2):
            cluster.end(index, made.cells[index].run)
        wait_for_outcomes(executor, 2)
    assert cluster.calls("scancel") == ["77_1"]


def test_leaving_cancels_jobs_and_waits_for_them(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("squeue", '[ "$call" -le 2 ] && echo "77_0 RUNNING"; true')
    with cluster.executor() as executor:
        for index in range(2):
            executor.submit(task_of(made, index))
        executor.poll(0.0)
    assert cluster.calls("scancel") == ["77_0 77_1"]
    assert len(cluster.calls("squeue")) == 3


def test_jobs_that_are_to_stay_are_neither_cancelled_nor_waited_for(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("squeue", "echo '77_0 RUNNING'; echo '77_1 PENDING'")
    with cluster.executor(cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(made, index))
        executor.poll(0.0)
    assert cluster.calls("scancel") == []
    assert cluster.calls("squeue") == []


NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def test_without_accounting_one_line_says_so_and_the_queue_tells_what_ended(
    cluster: Cluster, made: SweepPlan, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.script("sacct", NO_ACCOUNTING)
    cluster.script("squeue", '[ "$call" -le 2 ] && echo "77_0 CONFIGURING"; echo "77_1 PENDING"')
    for _ in range(2):  # a search and its cells enter one after the other
        with cluster.executor(cancel=False) as executor:
            for index in range(2):
                executor.submit(task_of(made, index))
            (outcome,) = wait_for_outcomes(executor, 1)
            assert outcome.key == made.cells[0].run
            assert outcome.code == 1
            assert " left the queue: " in str(outcome.reason)
    printed = "".join(capfd.readouterr()) + caplog.text
    assert printed.count("accounting") == 2  # "SLURM has no accounting (sacct: Slurm accounting storage ...)"
    assert printed.count("job states are read from squeue") == 1
    assert "Bypassing" not in printed
    assert len(cluster.calls("sacct")) == 1


def test_without_accounting_a_new_planner_finds_the_jobs_that_one_left(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("sacct", NO_ACCOUNTING)
    cluster.script("squeue", "echo '77_0 RUNNING'; echo '77_1 PENDING'")
    for _ in range(2):
        with cluster.executor(cancel=False) as executor:
            for index in range(2):
                executor.submit(task_of(made, index))
            executor.poll(0.0)
    assert len(cluster.calls("sbatch")) == 1


def test_what_sbatch_refuses_is_an_error_of_the_user(cluster: Cluster, made: SweepPlan) -> None:
    cluster.script("sbatch", "echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1")
    with cluster.executor(partition="nowhere") as executor:
        executor.submit(task_of(made))
        with pytest.raises(UserError, match=r"executor: submitit refused the jobs: .*invalid partition"):
            executor.poll(0.0)
