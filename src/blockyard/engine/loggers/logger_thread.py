"""A thread whose start is bounded in time."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

_START_SECONDS = 30.0


class LoggerThread:
    """A daemon thread that calls `target`.

    `threading.Thread.start` waits for the first line of the new thread without a limit, and a thread that finds no
    memory ends before it: the run would wait forever (Python 3.11 to 3.14). This one raises MemoryError after 30 s.
    """

    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._given_up = False

    def start(self, seconds: float = _START_SECONDS) -> None:
        """Start, and wait until it runs. Raises RuntimeError or MemoryError where the system has no room for it."""
        _thread.start_new_thread(self._run, ())
        self._started.wait(seconds)
        with self._lock:
            self._given_up = not self._started.is_set()
        if self._given_up:
            raise MemoryError(f"a thread did not start within {seconds:.0f} s")

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._started.is_set() and not self._ended.is_set()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for its end."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._started.set()
        try:
            self._target()
        finally:
            self._ended.set()
