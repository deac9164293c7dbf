"""SLURM: what sbatch is asked for, how jobs are followed by squeue alone, and that none outlives the sweep."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor import _slurm_queue, build
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
        self.script("sacct", "exit 1")  # not every cluster has accounting
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

    def queue(self, *jobs: str, first: str = "true") -> str:
        """A body of squeue that lists jobs, each written `77_0 RUNNING`, where `first` succeeds."""
        lines = [f"{'|'.join(job.split())}|None|{self.home}/submitit/.submission_file.sh" for job in jobs]
        return "\n".join(f"{first} && echo '{row}'" for row in lines) + "\ntrue"

    def end(self, number: int, key: str) -> None:
        """Leave the result of a job as submitit's process does."""
        result = self.home / "submitit" / f"77_{number}_0_result.pkl"
        result.write_bytes(pickle.dumps(("success", Outcome(key, 0))))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    instance = Cluster(tmp_path)
    monkeypatch.setenv("PATH", str(instance.tools), prepend=os.pathsep)
    for name in ("SBATCH_PARTITION", "SBATCH_CLUSTERS", "SBATCH_CLUSTER_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_slurm_queue, "_QUICK", 0.0)
    return instance


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has ended without a result is not given time to show one."""
    monkeypatch.setattr(_slurm_queue, "_RESULT_WAIT", 0.0)


@pytest.fixture
def sweep_plan(tmp_path: Path) -> SweepPlan:
    return plan(tmp_path / "outputs")


def task_of(sweep_plan: SweepPlan, index: int = 0, **trainer: Any) -> Task:
    config = sweep_plan.config(sweep_plan.cells[index])
    return Task(sweep_plan.cells[index].run, config | {"trainer": config["trainer"] | trainer})


def wait_for_outcomes(executor: Any, count: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + PATIENCE
    while len(outcomes) < count:
        assert time.monotonic() < deadline, outcomes
        outcomes += executor.poll(0.1)
    return outcomes


def test_options_reach_sbatch_and_jobs_are_recorded(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    cluster.script("sinfo", "echo 'main*|(null)'; echo 'gpu|gpu:4'")
    options = {"partition": "gpu", "account": "lab", "gpus_per_node": 1, "mem_gb": 32, "timeout_min": 90, "workers": 2}
    more = {"setup": ["module load cuda"], "sbatch": ["mail-type=END"], "constraint": "a100", "cancel": False}
    with cluster.executor(**options, **more) as executor:
        for index in range(4):
            executor.submit(task_of(sweep_plan, index))
        executor.poll(0.0)
    for option in ("partition=gpu", "account=lab", "gpus-per-node=1", "mem=32GB", "time=90", "array=0-3%2"):
        assert f"#SBATCH --{option}\n" in cluster.submitted
    for option in ("mail-type=END", "constraint=a100", "signal=USR2@120", "cpus-per-task=4", "nodes=1"):
        assert f"#SBATCH --{option}\n" in cluster.submitted
    assert "\nmodule load cuda\n" in cluster.submitted
    jobs = read_json(cluster.home / "submitit" / "jobs.json")
    assert jobs == {cell.run: f"77_{number}" for number, cell in enumerate(sweep_plan.cells)}


@pytest.mark.parametrize(
    ("sinfo", "partition", "requested"),
    [
        ("echo 'main*|(null)'", None, False),
        ("echo 'main*|gpu:a100:4(S:0-1)'", None, True),
        ("echo 'main*|(null)'; echo 'gpus|gpu:4'", None, False),  # the default partition counts
        ("echo 'main*|(null)'; echo 'gpus|nvme:1,gpu:4'", "gpus", True),
        ("echo 'main*|gpu:4'; echo 'cpus|lscratch:100'", "cpus", False),
        ("echo 'mixed|(null)'; echo 'mixed|gpu:4'; echo 'cpus|(null)'", "cpus,mixed", True),
        ("exit 1", None, True),  # nobody knows, so sbatch decides
        ("exit 1", "nowhere", True),
        ("true", "nowhere", True),
    ],
)
def test_gpus_are_requested_only_where_the_partition_has_some(
    cluster: Cluster, sweep_plan: SweepPlan, sinfo: str, partition: str | None, requested: bool
) -> None:
    cluster.script("sinfo", sinfo)
    with cluster.executor(partition=partition, cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index, accelerator="auto"))
        executor.poll(0.0)
    assert ("gpus-per-node=1" in cluster.submitted) == requested


def test_a_number_of_gpus_is_passed_on_without_asking(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    cluster.script("sinfo", "echo 'main*|(null)'")
    with cluster.executor(gpus_per_node=2, cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index, accelerator="auto"))
        executor.poll(0.0)
    assert "gpus-per-node=2" in cluster.submitted
    assert cluster.calls("sinfo") == []


@pytest.mark.parametrize("gpus", [None, 1])
@pytest.mark.parametrize(
    "chosen", [{"partition": "nowhere"}, {"partition": "cpus,nowhere"}, {"sbatch": ["partition=nowhere"]}]
)
def test_a_partition_that_does_not_exist_is_refused_before_submission(
    cluster: Cluster, gpus: int | None, chosen: dict[str, Any]
) -> None:
    """sbatch would speak of generic resources, where the cluster has no GPU."""
    cluster.script("sinfo", "echo 'main*|(null)'; echo 'cpus|(null)'; echo 'cpus|lscratch:100'")
    with (
        pytest.raises(UserError, match=r"^executor\.partition: SLURM has no partition nowhere; it has cpus, main$"),
        cluster.executor(gpus_per_node=gpus, **chosen),
    ):
        pass
    assert cluster.calls("sbatch") == []


@pytest.mark.parametrize("option", ["clusters=other", "M=other", None])
def test_partitions_of_another_cluster_are_left_to_sbatch(
    cluster: Cluster, sweep_plan: SweepPlan, monkeypatch: pytest.MonkeyPatch, option: str | None
) -> None:
    if option is None:
        monkeypatch.setenv("SBATCH_CLUSTERS", "other")
    with cluster.executor(partition="theirs", sbatch=[option] if option else [], cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index))
        executor.poll(0.0)
    assert "#SBATCH --partition=theirs\n" in cluster.submitted
    assert cluster.calls("sinfo") == []


def test_a_cell_that_needs_a_gpu_is_refused_where_there_is_none(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    cluster.script("sinfo", "echo 'cpus|(null)'")
    with cluster.executor(partition="cpus") as executor:
        executor.submit(task_of(sweep_plan, accelerator="gpu"))
        (outcome,) = executor.poll(0.0)
    assert outcome.code == 2
    assert "trainer.accelerator=gpu: partition cpus of SLURM has no GPU" in str(outcome.reason)
    assert cluster.calls("sbatch") == []


@pytest.mark.full
def test_the_executor_waits_until_finished_jobs_have_left_the_queue(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    body = cluster.queue("77_0 COMPLETING", first='[ "$call" -le 4 ]')
    cluster.script("squeue", f"{body}\n{cluster.queue('78 RUNNING')}")
    with cluster.executor() as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index))
        executor.poll(0.0)
        for index in range(2):
            cluster.end(index, sweep_plan.cells[index].run)
        assert {outcome.code for outcome in wait_for_outcomes(executor, 2)} == {0}
    assert len(cluster.calls("squeue")) >= 5
    assert cluster.calls("scancel") == []


def test_a_job_that_does_not_end_after_its_result_is_cancelled(
    cluster: Cluster, sweep_plan: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockyard.sweep.executor import slurm

    monkeypatch.setattr(slurm, "_PATIENCE", 0.0)
    cluster.script("squeue", cluster.queue("77_1 RUNNING", first='[ ! -e "$here/scancel.log" ]'))
    with cluster.executor() as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index))
        executor.poll(0.0)
        for index in range(2):
            cluster.end(index, sweep_plan.cells[index].run)
        wait_for_outcomes(executor, 2)
    assert cluster.calls("scancel") == ["77_1"]


@pytest.mark.full
def test_leaving_cancels_jobs_and_waits_for_them(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    cluster.script("squeue", cluster.queue("77_0 RUNNING", "77_1 RUNNING", first='[ "$call" -le 4 ]'))
    with cluster.executor() as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index))
        executor.poll(0.0)
    assert cluster.calls("scancel") == ["77_0 77_1"]
    assert len(cluster.calls("squeue")) == 5


def test_jobs_that_are_to_stay_are_neither_cancelled_nor_waited_for(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
        cluster.script("squeue", cluster.queue("77_0 RUNNING", "77_1 PENDING"))
        calls = len(cluster.calls("squeue"))
    assert cluster.calls("scancel") == []
    assert len(cluster.calls("squeue")) == calls


def submit(executor: Any, sweep_plan: SweepPlan, count: int) -> None:
    for index in range(count):
        executor.submit(task_of(sweep_plan, index))
    executor.poll(0.0)


@pytest.mark.parametrize(
    ("job", "ended"), [("77_0 CANCELLED", "ended as CANCELLED"), ("77_9 RUNNING", "left the queue")]
)
@pytest.mark.usefixtures("at_once")
def test_the_queue_tells_how_a_job_without_a_result_ended(
    cluster: Cluster, sweep_plan: SweepPlan, job: str, ended: str
) -> None:
    cluster.script("squeue", cluster.queue(job, "77_1 CONFIGURING"))
    with cluster.executor(cancel=False) as executor:
        for index in range(2):
            executor.submit(task_of(sweep_plan, index))
        (outcome,) = wait_for_outcomes(executor, 1)
    assert (outcome.key, outcome.code) == (sweep_plan.cells[0].run, 143)  # like one that was told to stop
    assert str(outcome.reason).startswith(f"job 77_0 {ended} without a result; see ")
    assert cluster.calls("sacct") == []


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "REQUEUED", "SUSPENDED", "SIGNALING"])
@pytest.mark.usefixtures("at_once")
def test_a_job_in_the_queue_has_not_ended(cluster: Cluster, sweep_plan: SweepPlan, state: str) -> None:
    cluster.script("squeue", cluster.queue(f"77_0 {state}"))
    with cluster.executor(cancel=False) as executor:
        executor.submit(task_of(sweep_plan))
        executor.submit(task_of(sweep_plan, 1))
        assert [outcome.key for outcome in executor.poll(2.0)] == [sweep_plan.cells[1].run]


def test_an_array_that_is_cancelled_is_reported_together(
    cluster: Cluster, sweep_plan: SweepPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a late result is one for all jobs, not one after the other."""
    monkeypatch.setattr(_slurm_queue, "_RESULT_WAIT", 0.5)
    cluster.script("squeue", cluster.queue(*(f"77_{number} CANCELLED" for number in range(4))))
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 4)
        assert len(executor.poll(30.0)) == 4


@pytest.mark.usefixtures("at_once")
def test_a_job_that_is_cut_off_is_submitted_again_a_few_times(
    cluster: Cluster, sweep_plan: SweepPlan, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.script("squeue", cluster.queue("77 TIMEOUT"))
    with cluster.executor(cancel=False, requeues=2) as executor:
        executor.submit(task_of(sweep_plan))
        (outcome,) = wait_for_outcomes(executor, 1)
    assert str(outcome.reason).startswith("job 77 ended as TIMEOUT")
    assert len(cluster.calls("sbatch")) == 3
    assert caplog.text.count("ended as TIMEOUT and is submitted again") == 2


def test_an_error_of_a_job_is_reported_by_its_last_line(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    cluster.script("squeue", cluster.queue("77 RUNNING"))
    with cluster.executor(cancel=False) as executor:
        executor.submit(task_of(sweep_plan))
        executor.poll(0.0)
        cluster.script("squeue", "")
        result = cluster.home / "submitit" / "77_0_result.pkl"
        result.write_bytes(pickle.dumps(("error", "Traceback (most recent call last):\nOSError: a full disk\n")))
        (outcome,) = wait_for_outcomes(executor, 1)
    assert str(outcome.reason).startswith("job 77: OSError: a full disk; see ")


@pytest.mark.full
@pytest.mark.usefixtures("at_once")
def test_a_queue_that_does_not_answer_ends_no_job(
    cluster: Cluster, sweep_plan: SweepPlan, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.script("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
        assert executor.poll(1.2) == []
    assert caplog.text.count("squeue does not answer (Unable to contact slurm controller)") == 1


def test_a_job_that_is_held_is_told_once(
    cluster: Cluster, sweep_plan: SweepPlan, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.script("squeue", "echo '77_0|PENDING|JobHeldUser|/x'; echo '77_1|PENDING|Priority|/x'")
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
        assert executor.poll(1.2) == []
    assert caplog.text.count("will not start by itself") == 1
    assert "job 77_0 waits in SLURM's queue and will not start by itself: JobHeldUser" in caplog.text


@pytest.mark.parametrize("recorded", [True, False])
def test_a_new_planner_finds_the_jobs_that_one_left(
    cluster: Cluster, sweep_plan: SweepPlan, recorded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
    cluster.script("squeue", cluster.queue("77_0 RUNNING", "77_1 PENDING"))
    if not recorded:  # the planner was killed between sbatch and its own note
        (cluster.home / "submitit" / "jobs.json").unlink()
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
    assert len(cluster.calls("sbatch")) == 1
    assert "jobs of an earlier command that are in SLURM's queue and go on: 2" in caplog.text


def test_a_relative_folder_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM names scripts by whole paths, so that jobs of a killed planner were not found, and submitted again."""
    monkeypatch.chdir(tmp_path)
    assert build("slurm", {"folder": "jobs"})._submitter.folder == tmp_path / "jobs"


def test_the_jobs_of_others_are_not_taken_for_ours(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    """A cluster that was set up anew counts its jobs from 1 again."""
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
    cluster.script("squeue", "echo '77_0|RUNNING|None|/home/other/script.sh'; echo '77_1|PENDING|None|(null)'")
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
    assert len(cluster.calls("sbatch")) == 2


def test_a_running_cell_of_an_earlier_planner_is_followed_and_cancelled(
    cluster: Cluster, sweep_plan: SweepPlan
) -> None:
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 2)
    cluster.script("squeue", cluster.queue("77_0 RUNNING", "77_1 RUNNING", first='[ ! -e "$here/scancel.log" ]'))
    with cluster.executor() as executor:
        assert [executor.attach(task_of(sweep_plan, index)) for index in range(3)] == [True, True, False]
        assert not executor.attach(task_of(sweep_plan))  # it is followed already
    assert cluster.calls("scancel") == ["77_0 77_1"]


@pytest.mark.parametrize(("array", "state"), [(("77", "0"), "RUNNING"), (("77", "2"), None), (None, "PENDING")])
def test_a_job_reads_its_own_state(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, array: tuple[str, str] | None, state: str | None
) -> None:
    """The last element of an array has the array's number for its own too, by which squeue lists all elements."""
    cluster.script("squeue", "echo '77_0 RUNNING'; echo '77_1 COMPLETING'; echo '77 PENDING'")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for name, value in zip(("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"), array or ("", ""), strict=True):
        monkeypatch.setenv(name, value)
    assert _slurm_queue.own_state() == state


def test_what_sbatch_refuses_is_an_error_of_the_user(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    cluster.script("sbatch", "echo 'sbatch: error: invalid partition specified: nowhere' >&2; exit 1")
    cluster.script("sinfo", "exit 1")
    with cluster.executor(partition="nowhere") as executor:
        executor.submit(task_of(sweep_plan))
        with pytest.raises(UserError, match=r"executor: submitit refused the jobs: .*invalid partition"):
            executor.poll(0.0)


class Calls:
    """A pickle that runs a command where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("wrapped", [lambda call: call, lambda call: ("success", call)])
def test_the_result_of_a_job_runs_nothing(
    cluster: Cluster, sweep_plan: SweepPlan, tmp_path: Path, wrapped: Callable[[Calls], Any]
) -> None:
    """A pickle in a stranger's folder may name any function; a job without an outcome of ours has left none."""
    cluster.script("squeue", cluster.queue("77 RUNNING"))
    with cluster.executor(cancel=False) as executor:
        executor.submit(task_of(sweep_plan))
        executor.poll(0.0)
        cluster.script("squeue", "")
        result = cluster.home / "submitit" / "77_0_result.pkl"
        result.write_bytes(pickle.dumps(wrapped(Calls(tmp_path / "called"))))
        (outcome,) = wait_for_outcomes(executor, 1)
    assert not (tmp_path / "called").exists()
    assert "without a result" in str(outcome.reason)
    assert outcome.code == 143


def test_the_call_of_a_job_is_read_and_runs_nothing(cluster: Cluster, sweep_plan: SweepPlan, tmp_path: Path) -> None:
    """A planner that looks for jobs of an earlier one reads their pickles as plain data."""
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 1)
    cluster.script("squeue", cluster.queue("77 RUNNING"))
    (cluster.home / "submitit" / "jobs.json").unlink()
    (pickled,) = (cluster.home / "submitit").glob("*_submitted.pkl")
    pickled.write_bytes(pickle.dumps(Calls(tmp_path / "called")))
    with cluster.executor(cancel=False) as executor:
        submit(executor, sweep_plan, 1)
    assert not (tmp_path / "called").exists()
    assert len(cluster.calls("sbatch")) == 2


def test_a_folder_that_others_may_write_to_is_refused(cluster: Cluster, sweep_plan: SweepPlan) -> None:
    """A job runs what lies in the sweep's folder: it must be nobody else's."""
    (cluster.home / "submitit").mkdir(parents=True)
    (cluster.home / "submitit").chmod(0o777)
    with pytest.raises(UserError, match="everybody may write to it"), cluster.executor(cancel=False) as executor:
        executor.submit(task_of(sweep_plan))
    assert cluster.calls("sbatch") == []


def test_jobs_without_slurm_have_a_folder_of_their_own(sweep_plan: SweepPlan, tmp_path: Path) -> None:
    """Their ids are those of processes: a result that an earlier container or a stranger left has one of them too."""
    for number in range(2, 64):
        path = tmp_path / "home" / "submitit" / f"{number}_0_result.pkl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Calls(tmp_path / "called")))
    executor = build("slurm", {"cluster": "local"})
    executor.home = tmp_path / "home"
    with executor:
        folder = executor._submitter.folder
    assert folder.parent == tmp_path / "home" / "submitit"
    assert list(folder.iterdir()) == []
