"""The function that a submitit job runs: the cell, and saving before the job is cut off."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from blockyard.config import package_finder
from blockyard.engine.system.interrupts import CODES
from blockyard.sweep.execution.cell import execute
from blockyard.sweep.executor._forked_cell import set_threads
from blockyard.sweep.executor._slurm_queue import own_state
from blockyard.sweep.executor.base import Outcome, Task

_TERMINATED = CODES[signal.SIGTERM]


def preempt_signal() -> signal.Signals:
    """The signal that submitit lets SLURM send before a job is cut off."""
    return signal.Signals["SIG" + os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")]


class CellJob:
    """Runs a cell. On submitit's signal the cell saves as on SIGTERM, and the job goes back into the queue.

    SLURM sends SIGTERM to a job that is cancelled, requeued, out of time, or preempted with time to save. Only the last
    one is still running for SLURM and puts itself back into the queue; SLURM knows what becomes of the others, so they
    leave no result.

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
        number, received = preempt_signal(), list[int]()
        requeue: Any = signal.getsignal(number)  # submitit's: stores this call, requeues the job, and exits

        def end(signum: int, frame: FrameType | None) -> None:
            if signum == number or own_state() == "RUNNING":
                with contextlib.suppress(OSError, subprocess.SubprocessError):  # too late: SLURM ends the job already
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
        """The call that the requeued job makes: the same one, since the run's folder holds the state."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)
