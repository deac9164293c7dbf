"""The executor interface: takes cells, runs them somewhere, and reports how each one ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from blockyard.sweep.cells import Outcome, Task


class Executor(ABC):
    """Runs tasks. A context manager that can be entered again. When it is left, running cells save and stop.

    home: the sweep's folder, for the executor's own files; the caller sets it before entering
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})
    home: Path | None = None

    @abstractmethod
    def __enter__(self) -> Executor: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The number of tasks that may be submitted before one of them has ended."""

    @property
    def parallel(self) -> int | None:
        """The number of tasks that run at the same time; None where a shared queue decides."""
        return self.capacity

    @property
    def threads(self) -> int | None:
        """CPU threads of each cell; None where the machines of the cells decide."""
        return None

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Take a task and start it when a slot is free."""

    def attach(self, task: Task) -> bool:
        """Follow a job that an earlier planner started for the task. Return whether there is one.

        Only jobs of a scheduler outlive their planner.
        """
        return False

    @abstractmethod
    def poll(self, seconds: float) -> list[Outcome]:
        """Return the tasks that ended since the last call; wait at most `seconds` for the first one."""
