"""What a submitit job runs: the cell, and what it does when the job is about to be cut off."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

from blockyard.sweep.execution.cell import execute
from blockyard.sweep.executor._warm import use_threads
from blockyard.sweep.executor.base import Outcome, Task

_STOPPED = 143


class Job:
    """Runs a cell. Told that its time is over, it first saves as on SIGTERM, then goes back into the queue.

    threads: CPU threads; None leaves them, where this process is the planner's own
    """

    def __init__(self, threads: int | None) -> None:
        self.threads = threads

    def __call__(self, task: Task) -> Outcome:
        """The cell's outcome; no return where the job goes back into the queue."""
        if self.threads is not None:
            use_threads(self.threads)
        number, requeue, asked = self._signal(), None, []

        def save(signum: int, frame: FrameType | None) -> None:
            asked.append((signum, frame))
            os.kill(os.getpid(), signal.SIGTERM)

        if number is not None:
            requeue = signal.signal(number, save)
        outcome = execute(task)
        if number is not None:
            signal.signal(number, requeue)
        if asked and outcome.code == _STOPPED and callable(requeue):
            requeue(*asked[0])  # submitit's own: stores this call anew, asks SLURM for another turn, and ends
        return outcome

    def checkpoint(self, task: Task) -> Any:
        """The call that the job makes in its next turn: the same, for the run's folder knows the rest."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)

    def _signal(self) -> int | None:
        """The signal by which submitit's jobs are told, where this is one."""
        if os.environ.get("SUBMITIT_EXECUTOR") not in ("slurm", "local"):
            return None
        return int(getattr(signal, "SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")))
