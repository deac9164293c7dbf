"""Outcomes of cells whose process died without reporting one; the run's status records them too."""

from __future__ import annotations

import signal

from blockyard.engine.faults.interrupts import CODES
from blockyard.sweep.cell.execute import is_done, record_failure, record_lost
from blockyard.sweep.cells import Outcome, Task

LOST = CODES[signal.SIGTERM]  # of a cell that a scheduler lost: like one that was told to stop, it can be resumed
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}


def outcome_of_exit(task: Task, code: int) -> Outcome:
    """The outcome of a process that ended with this exit code (negative: killed by that signal) and sent no outcome.

    A killed run is interrupted, and the same command resumes it. A crash would happen again, so the run has failed.
    """
    if code >= 0:
        return lost_outcome(task, code or 1, f"the process ended with exit code {code} and no outcome", failed=True)
    reason = f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
    return lost_outcome(task, code, reason, failed=-code in _CRASHES)


def lost_outcome(task: Task, code: int, reason: str, *, failed: bool) -> Outcome:
    """The outcome of a lost cell, after writing the reason to the run's status."""
    record_lost(task, reason, failed=failed)
    if is_done(task):  # its process died later, while it computed baselines
        return Outcome(task.key, 0)
    return Outcome(task.key, code, reason)


def outcome_of_timeout(task: Task, minutes: float, *, killed: bool) -> Outcome:
    """The outcome of a cell that was stopped after so many minutes, which has failed.

    killed: whether it had to be killed, because it did not save
    """
    state = "killed, because it did not react to SIGTERM" if killed else "stopped, and what it saved is kept"
    reason = f"not done after executor.timeout_min={minutes:g} minutes: {state}"
    record_failure(task, reason)
    return Outcome(task.key, 1, reason)
