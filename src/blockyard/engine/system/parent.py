"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """End this process with the one that started it, where the system can do that; it has nothing to do without.

    parent: the process id that was recorded before this process was started, since by now the parent may have died
        and `os.getppid()` name another; None takes the one of now
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
