"""What SLURM's own commands report: GPUs of a partition, jobs in the queue, accounting.

Source: sinfo, squeue, sacct and scancel of SLURM (slurm.schedmd.com)

submitit reads job states from `sacct`. On a cluster without accounting that command fails each time,
and a job that died without a result would count as running for ever. There the queue tells: a job that
`squeue` no longer lists has ended.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Collection
from typing import Any

log = logging.getLogger("blockyard")

GONE = "GONE"  # the state of a job that has left the queue, if nothing more is known
_TIMEOUT = 60.0  # seconds for one command of SLURM
_REFRESH = 30  # seconds at most between two reads of the queue
_LOOK = 0.5  # seconds between two looks while waiting for jobs to leave the queue


def has_gpus(partition: str | None) -> bool | None:
    """Whether a partition lists GPUs among its generic resources; None where `sinfo` does not answer.

    partition: one name or several with commas; None is the cluster's default partition
    """
    output, _ = _run("sinfo", "-h", "-o", "%P|%G", *(["-p", partition] if partition else []))
    if output is None:
        return None
    resources = [line.partition("|")[::2] for line in output.splitlines() if "|" in line]
    default = [gres for name, gres in resources if name.strip().endswith("*")]
    chosen = default if default and not partition else [gres for _, gres in resources]
    if not chosen:
        return None
    return any(part.strip().partition(":")[0] == "gpu" for gres in chosen for part in gres.split(","))


def queued_jobs() -> dict[str, str] | None:
    """The state of each of this user's jobs in the queue by job id; None where `squeue` does not answer.

    The elements of an array are separate: 77_0, 77_1, ...
    """
    output, _ = _run("squeue", "-h", "-r", "-u", str(os.getuid()), "-o", "%i %T")
    if output is None:
        return None
    return {job: state for job, _, state in (line.strip().partition(" ") for line in output.splitlines()) if job}


def wait_until_gone(jobs: Collection[str], seconds: float) -> set[str]:
    """Wait until jobs have left the queue; return those that have not after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        left = set(jobs) & set(queued_jobs() or ()) if jobs else set()
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_LOOK)


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs; SLURM sends their processes SIGTERM first."""
    if jobs:
        _run("scancel", *sorted(jobs))


def watch_queue_without_accounting(submitit: Any) -> None:
    """Let submitit read job states from `squeue` where `sacct` fails; say so once."""
    if getattr(submitit.SlurmJob.watcher, "reads_queue", False):
        return
    output, error = _run("sacct", "-n", "-X", "-S", "now")
    if output is None:
        log.warning("SLURM has no accounting (sacct: %s); job states are read from squeue", error)
        submitit.SlurmJob.watcher = _queue_watcher()


def _queue_watcher() -> Any:
    """submitit's watcher of job states, reading `squeue` instead of `sacct`."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class QueueWatcher(SlurmInfoWatcher):
        reads_queue = True

        def update(self) -> None:
            """Refresh the state of every job that has not ended."""
            self._last_status_check = time.time()
            queued = queued_jobs()
            if queued is None:  # a restart of slurmctld: the states of before stand
                return
            unfinished = self._registered - self._finished
            self._info_dict.update({job: {"State": _state(queued.get(job))} for job in unfinished})
            self._finished |= unfinished - queued.keys()

    return QueueWatcher(delay_s=_REFRESH)


def _state(state: str | None) -> str:
    # submitit takes states that it does not know, such as CONFIGURING, for an end.
    return GONE if state is None else state if state == "PENDING" else "RUNNING"


def _run(*command: str) -> tuple[str | None, str]:
    """A command's standard output, or None and why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode:
        return None, " ".join(done.stderr.split())[:200] or f"exit code {done.returncode}"
    return done.stdout, ""
