"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """End this process with the one that started it, where the system can do that; it has nothing to do without.

    The parent is the one that multiprocessing recorded before it started this process: by now it may have died, and
    `os.getppid()` would name another. For processes that are forked or spawned, not for those of a fork server.
    """
    recorded = multiprocessing.parent_process()
    parent = os.getppid() if recorded is None else recorded.pid
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
