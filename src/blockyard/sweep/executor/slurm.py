"""SLURM jobs through submitit: one job for each cell, submitted together as arrays.

Source: submitit (github.com/facebookincubator/submitit)
Reference: submitit.AutoExecutor
Cost: one job, one start of Python and one import for each cell

A job gets a signal before it is preempted, requeued or runs out of time: it saves, goes back into the
queue, and resumes with bitwise equal results. A job that is cut off all the same is submitted again. A new
planner finds the jobs that a killed planner left in the queue. The executor returns only when its jobs have
left the queue. No accounting is needed.

submitit writes and submits the scripts, runs the function of a job and requeues it. SLURM's own commands are called
where submitit's need accounting (states, see `_slurm_queue`), cancel a job at a time, or do not exist (partitions).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any, Literal

from blockyard.config.machine import cpu_cores, exported_threads
from blockyard.contracts import Count, CountOrZero, Positive, Text
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor import _slurm_queue
from blockyard.sweep.executor._slurm_options import import_submitit, job_parameters, no_gpu, sbatch_options
from blockyard.sweep.executor._slurm_queue import JobFollower, names_in
from blockyard.sweep.executor._slurm_submit import Submitter, ended_without_slurm, terminate
from blockyard.sweep.executor.base import Executor

log = logging.getLogger("blockyard")

_PATIENCE = 60.0  # seconds in which jobs must leave the queue after their result, or after they were cancelled
_SECOND_PATIENCE = 10.0  # seconds after jobs that did not were cancelled once more


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
        requeues: how often a cell that was cut off goes back into the queue before it counts as interrupted
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
        partition: Text | None = None,
        account: Text | None = None,
        qos: Text | None = None,
        constraint: Text | None = None,
        exclude: Text | None = None,
        timeout_min: Count = 240,
        cpus_per_task: Count = 4,
        gpus_per_node: CountOrZero | None = None,
        mem_gb: Positive | None = None,
        signal_delay_s: Count = 120,
        requeues: CountOrZero = 10,
        setup: tuple[str, ...] = (),
        sbatch: tuple[str, ...] = (),
        folder: Text | None = None,
        cancel: bool = True,
    ) -> None:
        self._submitit = import_submitit()
        self._cluster = cluster
        self._workers: int | None = workers
        if workers is None and cluster != "slurm":
            self._workers = 1 if cluster == "debug" else cpu_cores()
        self._cancel = cancel
        additional = sbatch_options(sbatch)
        options: dict[str, Any] = {
            "partition": partition,
            "account": account,
            "qos": qos,
            "constraint": constraint,
            "exclude": exclude,
            "additional_parameters": additional,
            "array_parallelism": workers,
            "setup": list(setup) or None,
        }
        self._submitter = Submitter(
            self._submitit,
            cluster,
            Path(os.path.expanduser(folder)).absolute() if folder else None,
            job_parameters(cluster, timeout_min, mem_gb, signal_delay_s, options),
            cpus=cpus_per_task,
            gpus=gpus_per_node,
            requeues=requeues,
            local_threads=exported_threads() or max(1, min(cpus_per_task, cpu_cores() // (self._workers or 1))),
        )
        self._queue = _slurm_queue.Queue()
        self._follower = JobFollower(self._queue, requeues)
        self._partition = partition or additional.get("partition") or os.environ.get("SBATCH_PARTITION")
        self._new: list[Task] = []
        self._running: dict[str, tuple[Task, Any]] = {}
        self._finished_jobs: set[str] = set()  # with a result, but perhaps still in the queue
        self._ended: list[Outcome] = []

    @property
    def capacity(self) -> int:
        """Cells that are submitted at the same time; most of them wait in SLURM's queue."""
        if self._workers and self._cluster != "slurm":
            return self._workers
        return 10_000

    @property
    def parallel(self) -> int | None:
        """`workers`; None where SLURM decides."""
        return self._workers

    def __enter__(self) -> SlurmExecutor:
        self._submitter.home = self.home
        self._submitter.open(self._queue, self._partition)
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel running and pending jobs unless `cancel` is false, and wait until the jobs have left the queue."""
        jobs = [job for _, job in self._running.values()] if self._cancel else []
        self._new.clear()
        self._running.clear()
        with contextlib.suppress(KeyboardInterrupt):
            if self._cluster == "slurm":
                self._leave_queue({str(job.job_id) for job in jobs})
            elif self._cluster == "local" and jobs:
                terminate(jobs, _PATIENCE)

    def submit(self, task: Task) -> None:
        """Take a task; the next `poll` submits it together with the others."""
        self._submitter.home = self.home
        if not self._submitter.gpus_available and (task.config.get("trainer") or {}).get("accelerator") == "gpu":
            self._ended.append(Outcome(task.key, 2, no_gpu(self._partition)))
            return
        if not self.attach(task):
            self._new.append(task)

    def attach(self, task: Task) -> bool:
        """Follow a job that an earlier planner left in the queue for this task. Return whether there is one."""
        job = self._submitter.find(task)
        if job is None:
            return False
        self._running[task.key] = (task, job)
        return True

    def poll(self, seconds: float) -> list[Outcome]:
        """Submit new tasks and return those that ended."""
        deadline = time.monotonic() + seconds
        while True:
            new, self._new = self._new, []
            for task, job in self._submitter.submit(new):
                self._running[task.key] = (task, job)
            if new:
                self._queue.expect_changes()
            if self._cluster == "slurm":
                self._follow()
            else:
                self._collect()
            if self._ended or time.monotonic() >= deadline:
                break
            time.sleep(min(0.5 if self._cluster == "slurm" else 0.2, seconds))
        ended, self._ended = self._ended, []
        return ended

    def _follow(self) -> None:
        """Collect the jobs of SLURM that have ended. A job that was cut off becomes a new task."""
        # One listing for all jobs, since a question for each file is slow on a shared file system.
        files = names_in(self._submitter.folder)
        for task, job in list(self._running.values()):
            state = self._follower.ended(job, files)
            if state is None:
                continue
            del self._running[task.key]
            self._finished_jobs.add(str(job.job_id))
            if self._follower.requeues(task, job, state):
                self._new.append(task)
            else:
                self._ended.append(self._follower.outcome(task, job, state))

    def _collect(self) -> None:
        """Collect the jobs without SLURM that have ended."""
        for outcome in ended_without_slurm(self._submitit, self._running, in_process=self._cluster == "debug"):
            del self._running[outcome.key]
            self._ended.append(outcome)

    def _leave_queue(self, running: set[str]) -> None:
        """Cancel running jobs, and wait for them and for finished ones until they have left the queue."""
        _slurm_queue.cancel(running)
        left = self._queue.wait_until_gone(self._finished_jobs | running, _PATIENCE)
        self._finished_jobs.clear()
        _slurm_queue.cancel(left)
        if left:
            left = self._queue.wait_until_gone(left, _SECOND_PATIENCE)
        if left:
            log.warning("still in SLURM's queue after scancel: %s", " ".join(sorted(left)))
