"""What an executor is: it takes cells, runs them somewhere, and says how each ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

BUSY = 75  # another process has the run; `EX_TEMPFAIL` of sysexits.h


@dataclass(frozen=True)
class Task:
    """One cell to run: all that its process needs, as plain data.

    key: the run's folder under `outputs`, unique in the sweep
    config: complete, with seed and outputs
    retry: whether a run that failed before is started anew
    trial: of a search: storage, study and number of the Optuna trial that this run answers
    """

    key: str
    config: dict[str, Any]
    choices: dict[str, str | None] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    retry: bool = False
    trial: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `blockyard train`'s exit code, BUSY, or minus the signal that killed it."""

    key: str
    code: int
    reason: str | None = None


class Executor(ABC):
    """Runs tasks. Used as a context, again after it was left; leaving it stops what still runs, saved and resumable.

    home: the sweep's folder, for files of the executor's own; set by who uses it, before entering
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})
    home: Path | None = None

    @abstractmethod
    def __enter__(self) -> Executor: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @property
    @abstractmethod
    def places(self) -> int:
        """How many tasks it takes before one of them has ended."""

    @property
    def parallel(self) -> int | None:
        """How many of them run at the same time; None where a queue that others use too decides."""
        return self.places

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Take a task; it starts when there is a place."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Outcome]:
        """The tasks that ended since the last call; waits at most `seconds` for the first."""
