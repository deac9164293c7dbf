"""One cell of a sweep, in the process that runs it."""

from __future__ import annotations

from blockyard.sweep.executor.base import Outcome, Task


def execute(task: Task) -> Outcome:
    """Train the task's run, or go on with it, or find it done. Never raises for what a run does."""
    raise NotImplementedError
