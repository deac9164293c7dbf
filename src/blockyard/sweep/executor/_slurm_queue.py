"""What SLURM's own commands report: the jobs in the queue and how they ended.

Source: squeue and scancel of SLURM (slurm.schedmd.com)

submitit reads job states from `sacct`, which a cluster without accounting does not have, and which calls a requeued job
cancelled for a while. `squeue` is right on every cluster, and lists a job for some minutes after its end (`MinJobAge`
of slurm.conf, 5 minutes unless configured otherwise).
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Collection
from dataclasses import dataclass

log = logging.getLogger("blockyard")

GONE = "GONE"  # the state of a job that is no longer listed
ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REVOKED", "TIMEOUT", GONE}
)
_HELD = (
    "Held",
    "held",
    "BadConstraints",
    "DependencyNeverSatisfied",
)  # parts of reasons that do not pass by themselves
_TIMEOUT = 60.0  # seconds for one command of SLURM
_REFRESH = 30.0  # seconds at most between two reads of the queue
_QUICK = 2.0  # seconds at least, except where a caller needs the present state
_LOOK = 0.5  # seconds between two looks while waiting for jobs to leave the queue


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue lists it; script: the path of what was submitted."""

    state: str
    reason: str = ""
    script: str = ""

    @property
    def live(self) -> bool:
        """Whether the job waits, runs or is about to end."""
        return self.state not in ENDED


class Queue:
    """The jobs of this user, read from squeue at most every few seconds."""

    def __init__(self) -> None:
        self._jobs: dict[str, QueuedJob] = {}
        self._read, self._changed = float("-inf"), time.monotonic()
        self._silent, self._told = False, set[str]()

    def expect_changes(self) -> None:
        """Read the queue more often for a while, because jobs were submitted."""
        self._changed = time.monotonic()

    def state(self, job: str) -> str:
        """The state of a job; as before where squeue does not answer."""
        self._refresh(min(_REFRESH, max(_QUICK, (time.monotonic() - self._changed) / 2)))
        queued = self._jobs.get(job) or QueuedJob("UNKNOWN" if self._silent else GONE)
        if queued.state == "PENDING" and any(part in queued.reason for part in _HELD) and job not in self._told:
            self._told.add(job)
            log.warning("job %s waits in SLURM's queue and will not start by itself: %s", job, queued.reason)
        return queued.state

    def live(self) -> dict[str, QueuedJob]:
        """The jobs that wait or run."""
        self._refresh(_QUICK)
        return {job: each for job, each in self._jobs.items() if each.live}

    def wait_until_gone(self, jobs: Collection[str], seconds: float) -> set[str]:
        """Wait until jobs have left the queue; return those that have not after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            if jobs:
                self._refresh(0.0)
            left = set(jobs) & {job for job, each in self._jobs.items() if each.live}
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
        self._jobs = self._jobs if jobs is None else jobs


def queued_jobs() -> tuple[dict[str, QueuedJob] | None, str]:
    """The jobs of this user by job id, those that ended lately included; None and why where `squeue` does not answer.

    The elements of an array are separate: 77_0, 77_1, ...
    """
    output, error = run_command("squeue", "-h", "-r", "-t", "all", "-u", str(os.getuid()), "-o", "%i|%T|%r|%o")
    if output is None:
        return None, error
    fields = (line.strip().split("|", 3) for line in output.splitlines())
    return {row[0]: QueuedJob(*row[1:]) for row in fields if len(row) > 1}, ""


def own_state() -> str | None:
    """The state of the job that this process belongs to; None where `squeue` does not list it or does not answer."""
    array, element = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{element}" if array and element else os.environ.get("SLURM_JOB_ID", "")
    output, _ = run_command("squeue", "-h", "-r", "-j", job, "-o", "%i %T")
    return dict(line.split() for line in (output or "").splitlines()).get(job)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs; SLURM sends their processes SIGTERM first."""
    if jobs:
        run_command("scancel", *sorted(jobs))


def run_command(*command: str) -> tuple[str | None, str]:
    """A command's standard output, or None and why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode:
        return None, " ".join(done.stderr.split())[:200] or f"exit code {done.returncode}"
    return done.stdout, ""
