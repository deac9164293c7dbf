"""The messages between the planner and its fork server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """A request of the planner: start a cell in this environment, or send a signal to one.

    number: the planner's number of the cell, repeated in `CellEnded`
    others: more cells by number for the same process, which runs them together; a signal reaches all of them
    alone: why there are no others, where there could be
    command: instead of a task, a function that returns an exit code. It runs like a process that the planner itself
        had started: with its streams, and in its process group, so that Ctrl-C and Ctrl-Z reach it from the terminal
    """

    number: int
    task: Any = None
    environment: dict[str, str] | None = None
    threads: int | None = None
    signum: int | None = None
    command: Callable[[], int] | None = None
    others: dict[int, Any] = field(default_factory=dict)
    alone: str | None = None


@dataclass(frozen=True)
class CellStarted:
    """The process of a cell was forked. The first fork waits for the server's imports."""

    number: int


@dataclass(frozen=True)
class CellEnded:
    """The process of a cell ended.

    code: its exit code (negative: killed by that signal)
    outcome: None if it sent none
    """

    number: int
    code: int
    outcome: Any = None
