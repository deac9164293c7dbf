"""Reads from SLURM's own commands which jobs are in the queue and how they ended; and the function of a job.

Source: squeue and scancel of SLURM (slurm.schedmd.com)

submitit reads job states from `sacct`. A cluster without accounting does not have it, and it calls a requeued job
cancelled for a while. `squeue` is right on every cluster, and lists a job for some minutes after its end (`MinJobAge`
of slurm.conf, 5 minutes unless configured otherwise).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from blockyard.config.untrusted import package_finder
from blockyard.engine.faults.interrupts import CODES
from blockyard.sweep.cell.execute import execute
from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor._fork_server import set_threads
from blockyard.sweep.executor._outcomes import LOST, lost_outcome
from blockyard.sweep.executor._slurm_pickles import read_pickle

log = logging.getLogger("blockyard")

GONE = "GONE"  # the state of a job that is no longer listed
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REVOKED", "TIMEOUT", GONE}
)
CUT_OFF = frozenset({"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})  # the same cell can go on in a new job
# Parts of the reasons for which a job waits forever.
_HELD = ("Held", "held", "BadConstraints", "DependencyNeverSatisfied")
_TERMINATED = CODES[signal.SIGTERM]
_TIMEOUT = 60.0  # seconds for one command of SLURM
_REFRESH = 30.0  # seconds at most between two reads of the queue
_QUICK = 2.0  # seconds at least between them, except where a caller needs the present state
_LOOK = 0.5  # seconds between two looks while waiting for jobs to leave the queue
_RESULT_WAIT = 15.0  # seconds in which a result of an ended job may still become visible on a shared file system


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue lists it. script: the path of the submitted script"""

    state: str
    reason: str = ""
    script: str = ""

    @property
    def live(self) -> bool:
        """True while the job waits, runs or is about to end."""
        return self.state not in ENDED


class Queue:
    """The jobs of this user, read from squeue at most every few seconds."""

    def __init__(self) -> None:
        self._jobs: dict[str, QueuedJob] = {}
        self._read = float("-inf")  # time of the last read
        self._changed = time.monotonic()  # time of the last submission
        self._silent = False  # squeue did not answer
        self._warned: set[str] = set()  # about jobs that are held

    def expect_changes(self) -> None:
        """Read the queue more often for a while, because jobs were submitted."""
        self._changed = time.monotonic()

    def state(self, job: str) -> str:
        """Return the state of a job. Where squeue does not answer it is the last known one."""
        # Rarely, once the jobs run: each read is work for the controller of the whole cluster.
        self._refresh(min(_REFRESH, max(_QUICK, (time.monotonic() - self._changed) / 2)))
        queued = self._jobs.get(job) or QueuedJob("UNKNOWN" if self._silent else GONE)
        is_held = queued.state == "PENDING" and any(part in queued.reason for part in _HELD)
        if is_held and job not in self._warned:
            self._warned.add(job)
            log.warning("job %s waits in SLURM's queue and will not start by itself: %s", job, queued.reason)
        return queued.state

    def live(self) -> dict[str, QueuedJob]:
        """Return the jobs that wait or run."""
        self._refresh(_QUICK)
        return {job: queued for job, queued in self._jobs.items() if queued.live}

    def wait_until_gone(self, jobs: Collection[str], seconds: float) -> set[str]:
        """Wait until jobs have left the queue. Return the jobs that have not after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            if jobs:
                self._refresh(0.0)
            left = {job for job in jobs if job in self._jobs and self._jobs[job].live}
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_LOOK)

    def _refresh(self, age: float) -> None:
        if time.monotonic() - self._read <= age:
            return
        jobs, error = queued_jobs()
        self._read = time.monotonic()
        if jobs is None and not self._silent:
            log.warning("squeue does not answer (%s); the states of jobs stand as they were", error)
        self._silent = jobs is None
        if jobs is not None:
            self._jobs = jobs


def queued_jobs() -> tuple[dict[str, QueuedJob] | None, str]:
    """Return the jobs of this user by job id, also ones that ended lately; None and why where `squeue` does not answer.

    The elements of an array are separate: 77_0, 77_1, ...
    """
    output, error = run_command("squeue", "-h", "-r", "-t", "all", "-u", str(os.getuid()), "-o", "%i|%T|%r|%o")
    if output is None:
        return None, error
    jobs = {}
    for line in output.splitlines():
        job, *fields = line.strip().split("|", 3)
        if fields:
            jobs[job] = QueuedJob(*fields)
    return jobs, ""


def own_state() -> str | None:
    """Return the state of this process's job; None where `squeue` does not list it or does not answer."""
    job = os.environ.get("SLURM_JOB_ID", "")
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    element = os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and element:
        job = f"{array}_{element}"
    output, _ = run_command("squeue", "-h", "-r", "-j", job, "-o", "%i %T")
    return dict(line.split() for line in (output or "").splitlines()).get(job)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs. SLURM sends their processes SIGTERM first."""
    if jobs:
        run_command("scancel", *sorted(jobs))


def run_command(*command: str) -> tuple[str | None, str]:
    """Return a command's standard output, or None and why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode:
        return None, " ".join(done.stderr.split())[:200] or f"exit code {done.returncode}"
    return done.stdout, ""


class JobFollower:
    """Reports the ends of jobs: from the result of a job, or without a result from its state in the queue.

    requeues: how often a run goes back into the queue after its job was cut off
    """

    def __init__(self, queue: Queue, requeues: int) -> None:
        self.queue = queue
        self._requeues = requeues
        self._cut_off: Counter[str] = Counter()  # how often the job of a run was cut off
        self._ended: dict[str, tuple[str, float]] = {}  # job id -> its state and when it was first seen

    def ended(self, job: Any, files: set[str]) -> str | None:
        """Return the state of a job that has ended, or None. files: the names in the folder of submitit's files"""
        if all(path.name in files for path in _results(job)):
            return "COMPLETED"
        state = self.queue.state(job.job_id)
        if state not in ENDED:
            self._ended.pop(job.job_id, None)
            return None
        state, since = self._ended.setdefault(job.job_id, (state, time.monotonic()))
        if time.monotonic() - since >= _RESULT_WAIT:
            return state
        return None

    def requeues(self, task: Task, job: Any, state: str) -> bool:
        """Return whether the task of an ended job is submitted again, because the job was cut off."""
        if state not in CUT_OFF or self._cut_off[task.key] >= self._requeues:
            return False
        self._cut_off[task.key] += 1
        log.warning("job %s ended as %s and is submitted again", job.job_id, state)
        return True

    def outcome(self, task: Task, job: Any, state: str) -> Outcome:
        """Return the outcome of an ended job. Without a result of the job, the run's status keeps the reason."""
        ended = "left the queue" if state == GONE else f"ended as {state}"
        try:
            results = [read_pickle(path) for path in _results(job)]
        except OSError:
            reason = f"job {job.job_id} {ended} without a result"
        except pickle.UnpicklingError as error:
            reason = f"job {job.job_id} {ended} without a result: {error}"
        else:
            # submitit writes ("success", value) or ("error", traceback) for each process of the job.
            pairs = [result for result in results if isinstance(result, tuple) and len(result) == 2]
            traces = [str(value).strip() for kind, value in pairs if kind == "error"]
            if pairs and not traces and isinstance(pairs[0][1], Outcome):
                return pairs[0][1]
            fault = "its result is not an outcome of a cell"
            if traces and traces[0]:
                fault = traces[0].splitlines()[-1][:200]
            reason = f"job {job.job_id}: {fault}"
        return lost_outcome(task, LOST, f"{reason}; see {job.paths.stderr}", failed=False)


def names_in(folder: Path) -> set[str]:
    """Return the names in a folder. Reading it makes new files of a shared file system visible."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _results(job: Any) -> list[Path]:
    return [job.task(number).paths.result_pickle for number in range(job.num_tasks)]


def preempt_signal() -> signal.Signals:
    """Return the signal that submitit lets SLURM send before a job is cut off."""
    return signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]


class CellJob:
    """The function that a submitit job runs: a cell, which saves before the job is cut off.

    On submitit's signal the cell saves as on SIGTERM, and the job goes back into the queue. SLURM sends SIGTERM to a
    job that is cancelled, requeued, out of time, or preempted with time to save. Only the last one is still running for
    SLURM and puts itself back into the queue. The others leave no result, since SLURM decides about them.

    threads: CPU threads; None leaves them unchanged, where this process is the planner's own
    """

    def __init__(self, threads: int | None) -> None:
        self.threads = threads
        self.packages = package_finder.described()  # a job may get none of the planner's environment

    def __call__(self, task: Task) -> Outcome:
        """Return the cell's outcome. Exits where the job goes back into the queue or was told to end."""
        package_finder.install(self.packages)
        if self.threads is not None:
            set_threads(self.threads)
        engine = os.environ.get("SUBMITIT_EXECUTOR")
        if engine not in ("slurm", "local"):
            return execute(task)
        number = preempt_signal()
        received: list[int] = []
        requeue: Any = signal.getsignal(number)  # submitit's handler: stores this call, requeues the job, and exits

        def end(signum: int, frame: FrameType | None) -> None:
            if signum == number or own_state() == "RUNNING":
                # An error comes too late to matter: SLURM ends the job already.
                with contextlib.suppress(OSError, subprocess.SubprocessError):
                    requeue(signum, frame)
            sys.exit(_TERMINATED)

        def save(signum: int, frame: FrameType | None) -> None:
            if signal.getsignal(signal.SIGTERM) is idle:  # no run is open that could save
                requeue(signum, frame)
            received.append(signum)
            os.kill(os.getpid(), signal.SIGTERM)

        if engine == "slurm":
            signal.signal(signal.SIGTERM, end)
        idle = signal.getsignal(signal.SIGTERM)
        signal.signal(number, save)
        outcome = execute(task)
        signal.signal(number, requeue)
        if outcome.code == _TERMINATED and engine == "slurm":
            end(received[0] if received else signal.SIGTERM, None)
        if outcome.code == _TERMINATED and received:
            requeue(received[0], None)
        return outcome

    def checkpoint(self, task: Task) -> Any:
        """Return the call of the requeued job: the same one, since the run's folder holds the state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)
