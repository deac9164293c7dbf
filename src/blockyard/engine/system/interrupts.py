"""SIGTERM and Ctrl-C: finish the step, save, and exit with the status that shells expect."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
PAUSED = 79  # exit code of a paused run; beyond those that sysexits.h names


class Interrupted(BaseException):
    """A signal requested a stop. Not an Exception, so that no error handler catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + the signal's number."""
        return CODES.get(signal.Signals(self.signum), 128 + self.signum)


class Paused(Interrupted):
    """A callback left the run before its end, with its state saved, to be resumed later."""

    def __init__(self, reason: str) -> None:
        BaseException.__init__(self, reason)
        self.signum = 0

    @property
    def exit_code(self) -> int:
        """A code of its own: no signal came, and nothing failed."""
        return PAUSED


class Interrupts:
    """Handles both signals from `__enter__` to `__exit__`.

    Outside training a signal raises `Interrupted` immediately. While `waiting` is set, between the first and the last
    step, it only sets `signum`, and the loop stops after the step in progress; a second Ctrl-C no longer waits.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in CODES}
            self.install()
        return self

    def install(self) -> None:
        """Install the handlers (again); Lightning installs its own when it starts."""
        if self._before:
            for number in CODES:
                signal.signal(number, self._handle)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        again = self.signum is not None
        self.signum = self.signum or signum
        if not self.waiting or (again and signum == signal.SIGINT):
            raise Interrupted(self.signum)
