"""Signals that request a stop: finish the step, save, and exit with the status that shells expect.

This is behaviour of a run, and stays. `Interrupts.behind` alone answers a library's fault: pydantic 2.14 (November
2026) turns an exception that is raised while it builds a schema into an error of its own. It goes with the first
release that lets a BaseException through.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

from blockyard.engine.system.process import end_with_parent

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
PAUSED = 79  # exit code of a paused run; beyond those that sysexits.h names
# Schedulers and terminals send these too. `nohup` ignores one of them, and a program may have a use of its own for
# another: both stay as they are.
_UNLESS_TAKEN = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
STOPPING = (*CODES, *_UNLESS_TAKEN)
GRACE = 5  # seconds that a worker goes on after SIGTERM, and that it is waited for; sent to it alone, it ends it


class Interrupted(BaseException):
    """A signal requested a stop. Not an Exception, so that no error handler catches it.

    rank: of the process that it reached, where that is another one
    """

    def __init__(self, signum: int, rank: int | None = None) -> None:
        where = "" if rank is None else f" in process {rank}"
        super().__init__(f"stopped by {signal.Signals(signum).name}{where}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + the signal's number."""
        return 128 + self.signum


class Paused(Interrupted):
    """A callback left the run before its end, with its state saved, to be resumed later."""

    def __init__(self, reason: str) -> None:
        BaseException.__init__(self, reason)
        self.signum = 0

    @property
    def exit_code(self) -> int:
        """A code of its own: no signal came, and nothing failed."""
        return PAUSED


class OverdueError(BaseException):
    """A block of `Interrupts.limiting` was left. Not an Exception, so that no error handler of a library catches it."""


class Interrupts:
    """Handles the signals from `__enter__` to `__exit__`.

    Outside training a signal raises `Interrupted` immediately. While `waiting` is set, between the first and the last
    step, it only sets `signum`, and the loop stops after the step in progress; a second Ctrl-C no longer waits.
    `Interrupted` is raised once: signals that come while the run ends because of it change nothing.

    No signal reaches a thread other than the main one; other threads learn of signals through `passing_on` alone.
    """

    _in_threads: ClassVar[set[Interrupts]] = set()
    _passing: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        self.signum: int | None = None
        self.waiting = False
        self._raised = False
        self._before: dict[int, Any] = {}
        self._limit: float | None = None  # seconds that a block of `limiting` goes on after a signal
        self._alarm_before: Any = None  # the handler of the clock that such a block has replaced

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set a handler
            free = [number for number in _UNLESS_TAKEN if signal.getsignal(number) is signal.SIG_DFL]
            self._before = {number: signal.getsignal(number) for number in (*CODES, *free)}
            self.install()
        else:
            self._in_threads.add(self)
            if self._passing is not None and self._passing.signum is not None:
                self.request(self._passing.signum)
        return self

    def install(self) -> None:
        """Install the handlers (again); a library may have installed its own."""
        for number in self._before:
            signal.signal(number, self._handle)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._in_threads.discard(self)

    @contextlib.contextmanager
    def passing_on(self) -> Iterator[None]:
        """In this block, pass a signal on to the runs of other threads; they stop after their step in progress."""
        self.waiting, Interrupts._passing = True, self
        try:
            yield
        finally:
            self.waiting, Interrupts._passing = False, None

    def request(self, signum: int) -> None:
        """Record a signal that reached another process of the run."""
        self.signum = self.signum or signum

    @contextlib.contextmanager
    def limiting(self, seconds: float) -> Iterator[None]:
        """In this block, a wait for another process, raise `OverdueError` `seconds` after a signal.

        It has an effect in the main thread while signals are recorded only: a process that is stopped, or waits for a
        disk, would make this one deaf to them.
        """
        self._limit = seconds
        try:
            if self.signum is not None and self.waiting:
                self._start_clock()
            yield
        finally:
            self._limit = None
            if self._alarm_before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._alarm_before)
                self._alarm_before = None

    def _start_clock(self) -> None:
        if self._limit is None or self._alarm_before is not None or not self._before:
            return
        self._alarm_before = signal.signal(signal.SIGALRM, self._overdue) or signal.SIG_DFL
        signal.setitimer(signal.ITIMER_REAL, self._limit)

    def _overdue(self, _signum: int, _frame: FrameType | None) -> None:
        if self._limit is not None:  # the block may have been left while the clock rang
            raise OverdueError

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self.signum is not None:
            self._raised = True
            raise Interrupted(self.signum)

    def behind(self, error: BaseException) -> BaseException:
        """Return the `Interrupted` that ended the run where an error stands in its place, else the error.

        Code of another language that a signal's exception passes through may turn it into an error of its own, as
        pydantic's does with whatever is raised while it builds a schema.
        """
        if self._raised and self.signum is not None and not isinstance(error, Interrupted):
            return Interrupted(self.signum)
        return error

    def close(self) -> None:
        """Record signals only from here on: the run is over, and how it ended is being written."""
        self._raised = True

    @contextlib.contextmanager
    def open_again(self) -> Iterator[None]:
        """After `close`, let a signal raise `Interrupted` in this block, once."""
        self._raised = False
        self.waiting = False
        try:
            self.check()  # one that came meanwhile
            yield
        finally:
            self._raised = True

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        # The first signal counts: its number becomes the exit code.
        again = self.signum is not None
        self.signum = self.signum or signum
        if self._passing is self:
            for interrupts in list(self._in_threads):
                interrupts.request(signum)
        if self._raised:  # the run ends already, and a second exception would cut short what it writes
            return
        if not self.waiting or (again and signum == signal.SIGINT):
            self._raised = True
            raise Interrupted(self.signum)
        self._start_clock()


def leave_signals_to_main(_worker: int) -> None:
    """In a worker: ignore the signals that stop a run, end some seconds after SIGTERM, and with the main process.

    A terminal and most schedulers signal every process of a run. A worker that ended at once would take the batches
    with it that the main process needs to finish its step, and the run would fail instead of being interrupted.

    torch's own look at the parent does not notice one that died before the worker began to look.
    """
    main = multiprocessing.parent_process()
    end_with_parent(None if main is None else main.pid)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _end)
    signal.signal(signal.SIGTERM, _end_soon)


def _end_soon(_signum: int, _frame: FrameType | None) -> None:
    signal.alarm(GRACE)


def _end(_signum: int, _frame: FrameType | None) -> None:
    os._exit(0)
