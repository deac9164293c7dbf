"""Outcomes of cells after a process died without a report. The run's status records them too."""

from __future__ import annotations

import signal

from blockyard.engine.faults.interrupts import CODES
from blockyard.sweep.cell.execute import is_done, record_failure, record_lost
from blockyard.sweep.cells import Outcome, Task

LOST = CODES[signal.SIGTERM]  # of a cell that a scheduler lost: it can be resumed, like a cell that was told to stop
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}


def outcome_of_exit(task: Task, code: int) -> Outcome:
    """Return the outcome of a process that ended with this exit code (negative: killed by that signal) and sent none.

    A killed run is interrupted, and the same command resumes it. A crash would happen again, so the run has failed.
    """
    if code >= 0:
        return lost_outcome(task, code or 1, f"the process ended with exit code {code} and no outcome", failed=True)
    signum = signal.Signals(-code)
    reason = f"killed by {signum.name}"
    if signum == signal.SIGKILL:
        reason += " (out of memory?)"
    return lost_outcome(task, code, reason, failed=signum in _CRASHES)


def lost_outcome(task: Task, code: int, reason: str, *, failed: bool) -> Outcome:
    """Write the reason to the run's status, and return the outcome of the lost cell."""
    record_lost(task, reason, failed=failed)
    if is_done(task):  # its process died later, while it computed baselines
        return Outcome(task.key, 0)
    return Outcome(task.key, code, reason)


def outcome_of_timeout(task: Task, minutes: float, *, killed: bool) -> Outcome:
    """Mark a cell as failed that was stopped at its time limit of so many minutes, and return its outcome.

    killed: whether it had to be killed, because it did not save
    """
    state = "killed, because it did not react to SIGTERM" if killed else "stopped, and what it saved is kept"
    reason = f"not done after executor.timeout_min={minutes:g} minutes: {state}"
    record_failure(task, reason)
    return Outcome(task.key, 1, reason)
