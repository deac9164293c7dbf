"""The function that a submitit job runs: the cell, and saving before the job is cut off."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from blockyard.sweep.execution.cell import execute
from blockyard.sweep.executor._fork_server import set_threads
from blockyard.sweep.executor.base import Outcome, Task

_TERMINATED = 143


class CellJob:
    """Runs a cell. On submitit's signal the cell saves as on SIGTERM, and the job goes back into the queue.

    threads: CPU threads; None leaves them unchanged, where this process is the planner's own
    """

    def __init__(self, threads: int | None) -> None:
        self.threads = threads

    def __call__(self, task: Task) -> Outcome:
        """Return the cell's outcome; does not return where the job goes back into the queue."""
        if self.threads is not None:
            set_threads(self.threads)
        number, requeue = self._signal(), None
        received: list[tuple[int, FrameType | None]] = []

        def save(signum: int, frame: FrameType | None) -> None:
            received.append((signum, frame))
            os.kill(os.getpid(), signal.SIGTERM)

        if number is not None:
            requeue = signal.signal(number, save)
        outcome = execute(task)
        if number is not None:
            signal.signal(number, requeue)
        if received and outcome.code == _TERMINATED and callable(requeue):
            requeue(*received[0])  # submitit's handler: stores this call, requeues the job, and exits
        return outcome

    def checkpoint(self, task: Task) -> Any:
        """The call that the requeued job makes: the same one, since the run's folder holds the state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)

    def _signal(self) -> int | None:
        """The signal that submitit sends before a job ends, where this process is such a job."""
        if os.environ.get("SUBMITIT_EXECUTOR") not in ("slurm", "local"):
            return None
        return int(getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")))
