"""The executor interface: takes cells, runs them somewhere, and reports how each one ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

JOB_FILES = "submitit"  # the folder of a scheduler's files, in the sweep's
BUSY = 75  # another process holds the run; `EX_TEMPFAIL` of sysexits.h


@dataclass(frozen=True)
class Task:
    """One cell to run: everything its process needs, as plain data.

    key: the run's folder below `outputs`, unique within the sweep
    config: complete, with seed and outputs
    retry: whether a run that failed before starts again
    trial: for a search, the storage, study and number of the Optuna trial that this run belongs to
    """

    key: str
    config: dict[str, Any]
    choices: dict[str, str | None] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    retry: bool = False
    trial: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    code: the exit code of `blockyard train`, BUSY, or the negative number of the signal that killed the process
    """

    key: str
    code: int
    reason: str | None = None


class Executor(ABC):
    """Runs tasks. A context manager that can be entered again; leaving it stops running cells, which save first.

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
        """How many tasks may be submitted before one of them has ended."""

    @property
    def parallel(self) -> int | None:
        """How many tasks run at the same time; None where a shared queue decides."""
        return self.capacity

    @property
    def threads(self) -> int | None:
        """CPU threads of each cell; None where the machines of the cells decide."""
        return None

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Take a task and start it when a slot is free."""

    def attach(self, task: Task) -> bool:
        """Whether a job that an earlier planner started for the task is still there, which this executor now follows.

        Only executors whose jobs outlive the planner have such jobs.
        """
        return False

    @abstractmethod
    def poll(self, seconds: float) -> list[Outcome]:
        """Return the tasks that ended since the last call; wait at most `seconds` for the first one."""
