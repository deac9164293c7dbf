"""SIGKILL from the kernel at a chosen moment: no thread of the process takes part, and nothing in it delays it."""

from __future__ import annotations

import ctypes
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """When an attempt is killed: after so many seconds of its clock, which is its CPU time or the wall's."""

    seconds: float
    clock: int = time.CLOCK_PROCESS_CPUTIME_ID


def kill_this_process(kill: Moment) -> None:
    """Set the timer. It does not survive a fork, so it strikes this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer, event = ctypes.c_void_p(), _Event(None, signal.SIGKILL, 0)
    first = _Interval(0, 0, int(kill.seconds), int(kill.seconds % 1 * 1e9))
    if libc.timer_create(kill.clock, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    if libc.timer_settime(timer, 0, ctypes.byref(first), None):
        raise OSError(ctypes.get_errno(), "timer_settime")


class _Event(ctypes.Structure):
    """`struct sigevent` of timer_create(2), with notify = SIGEV_SIGNAL."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


class _Interval(ctypes.Structure):
    """`struct itimerspec`: no repetition, then the time of the first expiry."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns"))
