"""SLURM jobs through submitit, one for each cell, submitted together as arrays.

Source: submitit (github.com/facebookincubator/submitit)
Reference: submitit.AutoExecutor
Cost: one job, one start of Python and one import for each cell

A job that is preempted or runs out of time is told some time before: it saves, goes back into the
queue, and goes on bit by bit. A planner that was killed finds the jobs it left in the queue.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from blockyard.contracts import Count, CountOrZero, Positive
from blockyard.errors import UserError
from blockyard.sweep.executor._deaths import lost
from blockyard.sweep.executor._job import Job
from blockyard.sweep.executor._ledger import known, pair, remember, said
from blockyard.sweep.executor._slots import cores, wanted
from blockyard.sweep.executor.base import Executor, Outcome, Task

_ARRAY = 1000  # jobs; SLURM's own limit is 1001 unless set otherwise
_ALIVE = ("PENDING", "RUNNING", "REQUEUED", "CONFIGURING", "SUSPENDED", "RESIZING", "COMPLETING")
_PATIENCE = 60.0


class SlurmExecutor(Executor):
    """Cells as jobs of SLURM.

    Options:
        cluster: slurm; local runs the same jobs as processes here, debug in this very process
        workers: jobs at once; null is what SLURM gives (a search then asks for 8), or as many as cores without it
        partition: sbatch's word of the same name, like the next four
        account: whose allocation pays
        qos: quality of service
        constraint: features that a node must have
        exclude: nodes that must not be used
        timeout_min: minutes after which a job is cut off and goes back into the queue
        cpus_per_task: CPUs for each process of a cell
        gpus_per_node: GPUs of a job; null is trainer.devices unless trainer.accelerator is cpu
        mem_gb: memory of a node; null is the partition's own
        signal_delay_s: seconds before its end at which a job is told to save
        requeues: how often a cut off job goes back into the queue before it counts as interrupted
        setup: shell lines before the cell, such as "module load cuda"
        sbatch: any other words of sbatch, such as mail-type=END
        folder: for submitit's files, seen by all nodes; null is submitit/ in the sweep's folder
        cancel: cancel jobs when the planner stops; false leaves them in the queue to be found again
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
                "executor=slurm needs submitit: pip install 'blockyard[slurm]'; or take executor=local"
            ) from error
        if timeout_min * 60 <= signal_delay_s:
            raise ValueError(
                f"executor.signal_delay_s={signal_delay_s} leaves nothing of executor.timeout_min={timeout_min}"
            )
        self._submitit: Any = submitit
        self._cluster = cluster
        self._workers = workers or (None if cluster == "slurm" else 1 if cluster == "debug" else cores())
        self._gpus = gpus_per_node
        self._cpus = cpus_per_task
        self._requeues = requeues
        self._folder = Path(folder).expanduser() if folder else None
        self._cancel = cancel
        self._common: dict[str, Any] = {"timeout_min": timeout_min, "name": "blockyard"}
        given = {"partition": partition, "account": account, "qos": qos, "constraint": constraint, "exclude": exclude}
        self._slurm = {f"slurm_{name}": value for name, value in given.items() if value is not None}
        self._slurm |= {"slurm_signal_delay_s": signal_delay_s}
        if mem_gb is not None:
            self._common["mem_gb"] = mem_gb
        if workers:
            self._slurm["slurm_array_parallelism"] = workers
        if setup:
            self._slurm["slurm_setup"] = list(setup)
        if sbatch:
            self._slurm["slurm_additional_parameters"] = dict(pair(word) for word in sbatch)
        self._new: list[Task] = []
        self._running: dict[str, tuple[Task, Any]] = {}
        self._ended: list[Outcome] = []

    @property
    def places(self) -> int:
        """Cells that are with SLURM at the same time, most of them waiting there."""
        return self._workers if self._workers and self._cluster != "slurm" else 10_000

    @property
    def parallel(self) -> int | None:
        """`workers`; without it SLURM decides."""
        return self._workers

    def __enter__(self) -> SlurmExecutor:
        with said("executor.cluster"):
            self._executor()
        return self

    def __exit__(self, *error: object) -> None:
        """Cancel what runs or waits, unless told to leave it."""
        self._new.clear()
        running, self._running = self._running, {}
        if self._cluster == "debug" or not (self._cancel and running):
            return
        for _, job in running.values():
            if self._cluster == "local":
                with contextlib.suppress(ProcessLookupError):  # submitit's own way leaves a second to save
                    os.kill(int(job.job_id), signal.SIGTERM)
            else:
                job.cancel(check=False)
        until = time.monotonic() + _PATIENCE
        with contextlib.suppress(KeyboardInterrupt):
            while self._cluster == "local" and time.monotonic() < until:
                if all(job.done() for _, job in running.values()):
                    break
                time.sleep(0.1)

    def submit(self, task: Task) -> None:
        """Take a task; it goes to SLURM with the others at the next `poll`."""
        found = self._left(task)
        if found is None:
            self._new.append(task)
        else:
            self._running[task.key] = (task, found)

    def poll(self, seconds: float) -> list[Outcome]:
        """Send what is new, and say what ended."""
        self._send()
        until = time.monotonic() + seconds
        while True:
            for key, (task, job) in list(self._running.items()):
                if job.done():
                    del self._running[key]
                    self._ended.append(self._outcome(task, job))
                    if self._cluster == "debug":  # it ran this very moment
                        break
            if self._ended or time.monotonic() >= until:
                break
            time.sleep(min(0.2, seconds))
        ended, self._ended = self._ended, []
        return ended

    # -- submitit ---------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where submitit's files lie."""
        return self._folder or (self.home or Path("outputs/sweeps")).absolute() / "submitit"

    def _executor(self) -> Any:
        return self._submitit.AutoExecutor(
            folder=self.folder,
            cluster=self._cluster,
            local_max_num_timeout=self._requeues,
            slurm_max_num_timeout=self._requeues,
        )

    def _send(self) -> None:
        new, self._new = self._new, []
        shapes: dict[tuple[int, int, int], list[Task]] = {}
        for task in new:
            shapes.setdefault(self._shape(task), []).append(task)
        for (nodes, tasks, gpus), group in shapes.items():
            devices = 1 if nodes > 1 else wanted(group[0].config)[0]
            with said("executor"):
                executor = self._executor()
                executor.update_parameters(
                    nodes=nodes,
                    tasks_per_node=tasks,
                    cpus_per_task=self._cpus * devices,
                    **({"gpus_per_node": gpus} if gpus else {}),
                    **self._common,
                    **(self._slurm if self._cluster == "slurm" else {}),
                )
                for start in range(0, len(group), _ARRAY):
                    self._array(executor, group[start : start + _ARRAY])

    def _array(self, executor: Any, tasks: Sequence[Task]) -> None:
        threads = {"slurm": self._cpus, "local": max(1, min(self._cpus, cores() // self.places))}.get(self._cluster)
        jobs = executor.map_array(Job(threads), tasks)
        for task, job in zip(tasks, jobs, strict=True):
            self._running[task.key] = (task, job)
        if self._cluster == "slurm":
            remember(self.folder, {task.key: job.job_id for task, job in zip(tasks, jobs, strict=True)})

    def _shape(self, task: Task) -> tuple[int, int, int]:
        """Nodes, processes on each that SLURM starts, and GPUs of each."""
        devices, gpu = wanted(task.config)
        nodes = int((task.config.get("trainer") or {}).get("num_nodes", 1))
        gpus = self._gpus if self._gpus is not None else devices if gpu and self._cluster == "slurm" else 0
        return nodes, devices if nodes > 1 else 1, gpus

    def _left(self, task: Task) -> Any:
        """The job that an earlier planner left in the queue for a task, or None."""
        name = known(self.folder).get(task.key) if self._cluster == "slurm" else None
        if name is None:
            return None
        nodes, tasks, _ = self._shape(task)
        job = self._submitit.SlurmJob(self.folder, name, list(range(nodes * tasks)))
        return job if not job.done(force_check=True) and str(job.state).upper() in _ALIVE else None

    def _outcome(self, task: Task, job: Any) -> Outcome:
        errors = self._submitit.core.utils
        try:
            return job.results()[0]
        except (errors.UncompletedJobError, errors.FailedJobError, OSError, EOFError) as error:
            log = f"; see {job.paths.stderr}" if self._cluster != "debug" else ""
            words = str(error).strip().splitlines() or [type(error).__name__]
            state = str(job.state)
            return lost(task, 1, f"job {job.job_id} ended as {state}: {words[0][:200]}{log}", failed=False)
