"""The jobs of submitit that run on this machine, without SLURM."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blockyard.engine.system.interrupts import CODES
from blockyard.sweep.executor._outcomes import lost_outcome
from blockyard.sweep.executor.base import Outcome, Task


def ended_without_slurm(
    submitit: Any, running: Mapping[str, tuple[Task, Any]], *, in_process: bool
) -> Iterator[Outcome]:
    """Yield the outcomes of the jobs that have ended; `in_process`: run the first one here."""
    for task, job in list(running.values()):
        if in_process:
            # Not `job.results()`, which opens log files that it does not close, and pdb after an error.
            outcome = job.submission().result()
            yield outcome
            _repeat_signal(outcome)
            return
        if job.done():
            yield _outcome(submitit, task, job)


def _outcome(submitit: Any, task: Task, job: Any) -> Outcome:
    """The outcome of a job that has ended."""
    errors = submitit.core.utils
    try:
        return job.results()[0]
    except (errors.UncompletedJobError, errors.FailedJobError, OSError, EOFError) as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        reason = f"job {job.job_id} ended as {job.state}: {message}; see {job.paths.stderr}"
        return lost_outcome(task, 1, reason, failed=False)


def _repeat_signal(outcome: Outcome) -> None:
    """Send this process the signal that stopped a cell in it: it was meant for the planner."""
    for signum, code in CODES.items():
        if outcome.code == code:
            signal.raise_signal(signum)


def terminate(jobs: Sequence[Any], patience: float) -> None:
    """Send SIGTERM to jobs and wait for them; submitit's own cancel leaves a second to save.

    patience: seconds to wait
    """
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(job.job_id), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not all(job.done() for job in jobs):
        time.sleep(0.1)
