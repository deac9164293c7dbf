"""SLURM jobs through submitit: one job for each cell, submitted together as arrays.

Source: submitit (github.com/facebookincubator/submitit)
Reference: submitit.AutoExecutor
Cost: one job, one start of Python and one import for each cell

A job that is preempted or runs out of time gets a signal beforehand: it saves, goes back into the
queue, and resumes with bitwise equal results. A new planner finds the jobs that a killed one left in
the queue. The executor returns only when its jobs have left the queue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from blockyard.contracts import Count, CountOrZero, Positive
from blockyard.errors import UserError
from blockyard.sweep.executor import _slurm_queue
from blockyard.sweep.executor._outcomes import lost_outcome
from blockyard.sweep.executor._slots import cpu_cores
from blockyard.sweep.executor._slurm_submit import Submitter, parse_sbatch_option, submitit_errors
from blockyard.sweep.executor.base import Executor, Outcome, Task

log = logging.getLogger("blockyard")

_PATIENCE = 60.0  # seconds in which jobs must end after their result, or after they were cancelled
_AFTER_CANCEL = 10.0


class SlurmExecutor(Executor):
    """Runs cells as SLURM jobs.

    Options:
        cluster: slurm; local runs the same jobs as processes on this machine, debug in the planner's process
        workers: jobs in parallel; null leaves it to SLURM (a search then submits 8), or uses all cores without SLURM
        partition: sbatch's option of this name, like the next four
        account: the account that is charged
        qos: quality of service
        constraint: features that a node must have
        exclude: nodes that must not be used
        timeout_min: minutes after which a job is cut off and goes back into the queue
        cpus_per_task: CPUs for each process of a cell
        gpus_per_node: GPUs of a job; null requests trainer.devices where the partition has GPUs, none on a CPU
        mem_gb: memory of a node; null is the partition's default
        signal_delay_s: seconds before its time limit at which a job gets the signal to save
        requeues: how often a job that was cut off goes back into the queue before it counts as interrupted
        setup: shell lines before the cell, such as "module load cuda"
        sbatch: further sbatch options, such as mail-type=END
        folder: for submitit's files, visible to all nodes; null is submitit/ in the sweep's folder
        cancel: cancel jobs when the planner stops; false leaves them in the queue for the next planner
    """

    def __init__(
        self,
        *,
        cluster: Literal["slurm", "local", "debug"] = "slurm",
        workers: Count | None = None,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        exclude: str | None = None,
        timeout_min: Count = 240,
        cpus_per_task: Count = 4,
        gpus_per_node: CountOrZero | None = None,
        mem_gb: Positive | None = None,
        signal_delay_s: Count = 120,
        requeues: CountOrZero = 10,
        setup: tuple[str, ...] = (),
        sbatch: tuple[str, ...] = (),
        folder: str | None = None,
        cancel: bool = True,
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UserError(
                "executor=slurm needs submitit: pip install 'blockyard[slurm]', or use executor=local"
            ) from error
        if timeout_min * 60 <= signal_delay_s:
            raise ValueError(
                f"executor.signal_delay_s={signal_delay_s} must be shorter than executor.timeout_min={timeout_min}"
            )
        self._submitit: Any = submitit
        self._cluster = cluster
        self._workers = workers or (None if cluster == "slurm" else 1 if cluster == "debug" else cpu_cores())
        self._cancel = cancel
        common: dict[str, Any] = {"timeout_min": timeout_min, "name": "blockyard"}
        options = {"partition": partition, "account": account, "qos": qos, "constraint": constraint, "exclude": exclude}
        slurm: dict[str, Any] = {f"slurm_{name}": value for name, value in options.items() if value is not None}
        slurm |= {"slurm_signal_delay_s": signal_delay_s}
        if mem_gb is not None:
            common["mem_gb"] = mem_gb
        if workers:
            slurm["slurm_array_parallelism"] = workers
        if setup:
            slurm["slurm_setup"] = list(setup)
        further = dict(parse_sbatch_option(option) for option in sbatch)
        if further:
            slurm["slurm_additional_parameters"] = further
        self._submitter = Submitter(
            submitit,
            cluster,
            Path(folder).expanduser() if folder else None,
            common | (slurm if cluster == "slurm" else {}),
            cpus=cpus_per_task,
            gpus=gpus_per_node,
            requeues=requeues,
            local_threads=max(1, min(cpus_per_task, cpu_cores() // (self._workers or 1))),
        )
        self._partition = partition or further.get("partition") or os.environ.get("SBATCH_PARTITION")
        self._new: list[Task] = []
        self._running: dict[str, tuple[Task, Any]] = {}
        self._finished_jobs: set[str] = set()  # with a result, but perhaps still in the queue
        self._ended: list[Outcome] = []

    @property
    def capacity(self) -> int:
        """Cells that are submitted at the same time; most of them wait in SLURM's queue."""
        return self._workers if self._workers and self._cluster != "slurm" else 10_000

    @property
    def parallel(self) -> int | None:
        """`workers`; None where SLURM decides."""
        return self._workers

    def __enter__(self) -> SlurmExecutor:
        self._submitter.home = self.home
        with submitit_errors("executor.cluster"):
            self._submitter.executor()
        if self._cluster == "slurm":
            _slurm_queue.watch_queue_without_accounting(self._submitit)
            if self._submitter.gpus is None:
                self._submitter.gpus_available = _slurm_queue.has_gpus(self._partition) is not False
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel running and pending jobs unless `cancel` is false, and wait until the jobs have left the queue."""
        self._new.clear()
        running, self._running = self._running, {}
        jobs = [job for _, job in running.values()] if self._cancel else []
        with contextlib.suppress(KeyboardInterrupt):
            if self._cluster == "slurm":
                self._leave_queue({str(job.job_id) for job in jobs})
            elif self._cluster == "local" and jobs:
                _terminate(jobs)

    def submit(self, task: Task) -> None:
        """Take a task; the next `poll` submits it together with the others."""
        self._submitter.home = self.home
        if not self._submitter.gpus_available and (task.config.get("trainer") or {}).get("accelerator") == "gpu":
            where = f"partition {self._partition}" if self._partition else "the default partition"
            reason = (
                f"trainer.accelerator=gpu: {where} of SLURM has no GPU; use executor.partition=NAME, or trainer=cpu"
            )
            self._ended.append(Outcome(task.key, 2, reason))
            return
        job = self._submitter.find(task)
        if job is None:
            self._new.append(task)
        else:
            self._running[task.key] = (task, job)

    def poll(self, seconds: float) -> list[Outcome]:
        """Submit new tasks and return those that ended."""
        new, self._new = self._new, []
        for task, job in self._submitter.submit(new):
            self._running[task.key] = (task, job)
        deadline = time.monotonic() + seconds
        while True:
            for key, (task, job) in list(self._running.items()):
                if job.done():
                    del self._running[key]
                    self._finished_jobs.add(str(job.job_id))
                    self._ended.append(self._outcome(task, job))
                    if self._cluster == "debug":  # the call to `done` has run the cell
                        break
            if self._ended or time.monotonic() >= deadline:
                break
            time.sleep(min(0.2, seconds))
        ended, self._ended = self._ended, []
        return ended

    # -- jobs -------------------------------------------------------------------------------------------

    def _outcome(self, task: Task, job: Any) -> Outcome:
        errors = self._submitit.core.utils
        try:
            return job.results()[0]
        except (errors.UncompletedJobError, errors.FailedJobError, OSError, EOFError) as error:
            log_file = f"; see {job.paths.stderr}" if self._cluster != "debug" else ""
            state = str(job.state)
            ended = "left the queue" if state == _slurm_queue.GONE else f"ended as {state}"
            message = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            return lost_outcome(task, 1, f"job {job.job_id} {ended}: {message}{log_file}", failed=False)

    def _leave_queue(self, running: set[str]) -> None:
        """Cancel running jobs, and wait for them and for finished ones until they have left the queue."""
        _slurm_queue.cancel(running)
        jobs, self._finished_jobs = self._finished_jobs | running, set()
        left = _slurm_queue.wait_until_gone(jobs, _PATIENCE)
        _slurm_queue.cancel(left)
        if left and (left := _slurm_queue.wait_until_gone(left, _AFTER_CANCEL)):
            log.warning("still in SLURM's queue after scancel: %s", " ".join(sorted(left)))


def _terminate(jobs: Sequence[Any]) -> None:
    """Send SIGTERM to local jobs and wait for them; submitit's own cancel leaves a second to save."""
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and not all(job.done() for job in jobs):
        time.sleep(0.1)
