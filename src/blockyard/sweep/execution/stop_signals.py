"""Ctrl-C and SIGTERM while a sweep runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from blockyard.engine.system.interrupts import CODES


class StopSignals:
    """Records the first Ctrl-C or SIGTERM for the running loop to see; every later one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def code(self) -> int:
        """The exit code that shells expect after the signal; 0 where none came."""
        return 0 if self.signum is None else CODES[signal.Signals(self.signum)]

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in CODES}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise KeyboardInterrupt
        self.signum = signum
