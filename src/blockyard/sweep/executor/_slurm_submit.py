"""Submits cells as submitit jobs, to partitions that exist, and finds the jobs of an earlier planner.

Source: sinfo of SLURM (slurm.schedmd.com), for the partitions and whether they have GPUs
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, shared_reason, write_json
from blockyard.engine.faults.interrupts import CODES
from blockyard.errors import UserError, first_line
from blockyard.runs.lock import exclusive
from blockyard.sweep.cells import JOB_FILES, Outcome, Task
from blockyard.sweep.executor._outcomes import lost_outcome
from blockyard.sweep.executor._slots import requested_devices
from blockyard.sweep.executor._slurm_options import submitit_errors
from blockyard.sweep.executor._slurm_pickles import read_pickle
from blockyard.sweep.executor._slurm_queue import CellJob, Queue, preempt_signal, run_command

log = logging.getLogger("blockyard")

JOBS = "jobs.json"  # run -> job id, for the next planner
_ARRAY = 1000  # jobs in one array; SLURM's own limit is 1001 unless configured otherwise
# sbatch's options and variables by which jobs go to clusters that sinfo does not list.
_ELSEWHERE = ("clusters", "M", "cluster-constraint", "remote")
_ELSEWHERE_VARIABLES = ("SBATCH_CLUSTERS", "SBATCH_CLUSTER_CONSTRAINT")


class Submitter:
    """Submits tasks to a cluster, as one array for each shape of job.

    parameters: of submitit's executor
    cpus: for each process
    gpus: of a node; None for the number that the cell requests
    requeues: how often a job that was cut off goes back into the queue
    local_threads: of a job without SLURM
    gpus_available: whether the cluster's nodes have GPUs
    home: the sweep's folder
    """

    def __init__(
        self,
        submitit: Any,
        cluster: str,
        folder: Path | None,
        parameters: dict[str, Any],
        *,
        cpus: int,
        gpus: int | None,
        requeues: int,
        local_threads: int,
    ) -> None:
        self._submitit = submitit
        self._cluster = cluster
        self._folder = folder
        self._jobs: Path | None = None  # inside that folder, for jobs without SLURM
        self._parameters = parameters
        self._cpus = cpus
        self._requeues = requeues
        self._threads = {"slurm": cpus, "local": local_threads}.get(cluster)
        self.gpus = gpus
        self.gpus_available = True
        self.home: Path | None = None
        self._job_of_run: dict[str, str] = {}  # of an earlier planner, in the queue

    @property
    def folder(self) -> Path:
        """The folder of submitit's files."""
        return self._jobs or self._folder or (self.home or Path("outputs/sweeps")).absolute() / JOB_FILES

    def executor(self) -> Any:
        """Return submitit's executor. Raises RuntimeError where the cluster does not exist."""
        # The shell ignores the signal, so that it does not end the process before submitit has set its handler.
        ignoring = f'trap "" {preempt_signal().name.removeprefix("SIG")}; exec "$0" "$@"'
        return self._submitit.AutoExecutor(
            folder=self.folder,
            cluster=self._cluster,
            local_max_num_timeout=self._requeues,
            slurm_max_num_timeout=self._requeues,
            slurm_python=shlex.join(["sh", "-c", ignoring, sys.executable, "-P"]),
        )

    def open(self, queue: Queue, partition: str | None) -> None:
        """Look at the cluster before the first submission.

        Raises UserError where the cluster or its partition does not exist, or others may write to the folder.
        """
        # Of the sweep's folder: its `submitit`, itself, and the folder of all sweeps.
        for path in (self.folder, *self.folder.parents[:2]):
            reason = shared_reason(path) if os.path.lexists(path) else None
            if reason:  # another user could replace the files of a job, which the job runs as this user
                raise UserError(f"{path}: {reason}, and jobs run what lies in {self.folder}; use a folder of your own")
        if self._cluster != "slurm":
            # A job's id is that of its process, which repeats in each container, and its result is a pickle that
            # submitit reads: results of other commands, or of a stranger, must not lie in the folder.
            self._jobs = None
            self.folder.mkdir(parents=True, exist_ok=True)
            self._jobs = Path(tempfile.mkdtemp(prefix="jobs-", dir=self.folder))
        with submitit_errors("executor.cluster"):
            self.executor()
        if self._cluster == "slurm":
            self.look(queue)
            if self.gpus is None or partition:
                partitions = read_partitions(self._parameters["slurm_additional_parameters"])
                if partitions is not None:  # else sbatch decides
                    partitions.check(partition)
                    self.gpus_available = self.gpus is not None or partitions.have_gpus(partition)

    def look(self, queue: Queue) -> None:
        """Find the jobs in the queue that an earlier planner of this sweep has submitted, recorded or not."""
        # Ids of jobs begin anew with a new cluster, so the path of the script identifies the jobs of this sweep.
        own_scripts = str(self.folder) + os.sep
        live = {job for job, queued in queue.live().items() if queued.script.startswith(own_scripts)}
        run_by_job = {job: run for run, job in self._recorded().items()}
        for job in live - run_by_job.keys():  # a planner that was killed between the submission and the record
            with contextlib.suppress(OSError, pickle.UnpicklingError, AttributeError, IndexError):
                run_by_job[job] = str(read_pickle(self.folder / f"{job}_submitted.pkl").args[0].key)
        self._job_of_run = {run_by_job[job]: job for job in live if job in run_by_job}
        if self._job_of_run:
            log.warning("jobs of an earlier command that are in SLURM's queue and go on: %d", len(self._job_of_run))

    def submit(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Any]]:
        """Submit tasks and yield each with its job. Raises UserError where sbatch refuses them."""
        by_shape: dict[tuple[int, int, int], list[Task]] = {}
        for task in tasks:
            by_shape.setdefault(self._shape(task), []).append(task)
        for (nodes, processes, gpus), group in by_shape.items():
            devices = 1 if nodes > 1 else requested_devices(group[0].config)[0]
            with submitit_errors("executor"):
                executor = self.executor()
                parameters = self._parameters | {"gpus_per_node": gpus} if gpus else self._parameters
                executor.update_parameters(
                    nodes=nodes, tasks_per_node=processes, cpus_per_task=self._cpus * devices, **parameters
                )
                for start in range(0, len(group), _ARRAY):
                    yield from self._submit_array(executor, group[start : start + _ARRAY])

    def find(self, task: Task) -> Any:
        """Return the job that an earlier planner left in the queue for a task, or None."""
        job_id = self._job_of_run.pop(task.key, None)
        if job_id is None:
            return None
        nodes, processes, _ = self._shape(task)
        return self._submitit.SlurmJob(self.folder, job_id, list(range(nodes * processes)))

    def _submit_array(self, executor: Any, tasks: Sequence[Task]) -> list[tuple[Task, Any]]:
        jobs = list(zip(tasks, executor.map_array(CellJob(self._threads), tasks), strict=True))
        if self._cluster == "slurm":
            with exclusive(self.home or self.folder):  # another planner may have written since
                record = self._recorded() | {task.key: job.job_id for task, job in jobs}
                write_json(self.folder / JOBS, record)
        return jobs

    def _shape(self, task: Task) -> tuple[int, int, int]:
        """Return the nodes of a job, the processes that SLURM starts on each, and the GPUs of each."""
        devices, gpu = requested_devices(task.config)
        nodes = int((task.config.get("trainer") or {}).get("num_nodes", 1))
        gpus = self.gpus
        if gpus is None:
            gpus = devices if gpu and self._cluster == "slurm" and self.gpus_available else 0
        # On one node Lightning starts the processes of the other devices itself.
        processes = devices if nodes > 1 else 1
        return nodes, processes, gpus

    def _recorded(self) -> dict[str, str]:
        """Return the job id of every run that was submitted before."""
        try:
            return dict(read_json(self.folder / JOBS))
        except (OSError, ValueError, TypeError):
            return {}


def ended_without_slurm(
    submitit: Any, running: Mapping[str, tuple[Task, Any]], *, in_process: bool
) -> Iterator[Outcome]:
    """Yield the outcomes of the jobs on this machine that have ended. in_process: run the first one here"""
    for task, job in list(running.values()):
        if in_process:
            # Not `job.results()`: it opens log files and does not close them, and starts pdb after an error.
            outcome = job.submission().result()
            yield outcome
            # The signal that stopped the cell was meant for the planner, whose process this is.
            for signum, code in CODES.items():
                if outcome.code == code:
                    signal.raise_signal(signum)
            return
        if job.done():
            yield _outcome(submitit, task, job)


def _outcome(submitit: Any, task: Task, job: Any) -> Outcome:
    """Return the outcome of a job that has ended."""
    errors = submitit.core.utils
    try:
        outcome: Outcome = job.results()[0]
        if outcome.key == task.key:
            return outcome
        return lost_outcome(task, 1, f"job {job.job_id} reported on {outcome.key}", failed=False)
    except (errors.UncompletedJobError, errors.FailedJobError, OSError, EOFError) as error:
        message = first_line(error)[:200]
        reason = f"job {job.job_id} ended as {job.state}: {message}; see {job.paths.stderr}"
        return lost_outcome(task, 1, reason, failed=False)


def terminate(jobs: Sequence[Any], patience: float) -> None:
    """Send SIGTERM to jobs on this machine and wait for them. patience: seconds to wait"""
    for job in jobs:  # not `job.cancel()`, after which submitit kills the process within a second
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not all(job.done() for job in jobs):
        time.sleep(0.1)


@dataclass(frozen=True)
class Partitions:
    """The partitions of a cluster.

    gpus: by name, whether a partition lists GPUs among its generic resources
    default: the cluster's default
    """

    gpus: dict[str, bool]
    default: str | None = None

    def check(self, chosen: str | None) -> None:
        """Raise UserError where a partition does not exist. chosen: names with commas between; None: the default"""
        unknown = [name for name in _names(chosen) if name not in self.gpus]
        if unknown:
            listed = ", ".join(sorted(self.gpus))
            raise UserError(f"executor.partition: SLURM has no partition {', '.join(unknown)}; it has {listed}")

    def have_gpus(self, chosen: str | None) -> bool:
        """Return whether one of the chosen partitions has GPUs; without a choice or a default, any partition."""
        names = _names(chosen)
        if not names:
            names = [self.default] if self.default else list(self.gpus)
        return any(self.gpus.get(name, False) for name in names)


def read_partitions(sbatch: Mapping[str, Any]) -> Partitions | None:
    """Return all partitions, hidden ones too; None where `sinfo` does not answer or jobs go to another cluster.

    sbatch: more options of sbatch
    """
    if any(name in sbatch for name in _ELSEWHERE) or any(map(os.environ.get, _ELSEWHERE_VARIABLES)):
        return None
    output, _ = run_command("sinfo", "-h", "-a", "-o", "%P|%G")
    gpus: dict[str, bool] = {}
    default = None
    for line in (output or "").splitlines():
        name, bar, resources = line.strip().partition("|")
        if not bar:
            continue
        if name.endswith("*"):  # sinfo's mark of the default
            name = name.rstrip("*")
            default = name
        has_gpus = any(part.strip().partition(":")[0] == "gpu" for part in resources.split(","))
        # A partition has a line for each kind of its nodes.
        gpus[name] = gpus.get(name, False) or has_gpus
    return Partitions(gpus, default) if gpus else None


def _names(chosen: str | None) -> list[str]:
    return [name for name in (chosen or "").split(",") if name]
