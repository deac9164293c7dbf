"""Cells whose process died without a word: what is said of them, in their outcome and in their run's status."""

from __future__ import annotations

import signal

from blockyard.sweep.execution.cell import given_up
from blockyard.sweep.executor.base import Outcome, Task

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}


def silent(task: Task, code: int) -> Outcome:
    """The outcome of a process that ended with this exit code, minus the signal where one killed it.

    A process that was killed is gone on with by the same command. One that crashed would do so again:
    its run has failed.
    """
    if code >= 0:
        return lost(task, code or 1, f"its process ended with exit code {code} and without a word", failed=True)
    reason = f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
    return lost(task, code, reason, failed=-code in _CRASHES)


def lost(task: Task, code: int, reason: str, *, failed: bool) -> Outcome:
    """The outcome of a cell that was lost, written into its run's status too."""
    given_up(task, reason, failed=failed)
    return Outcome(task.key, code, reason)
