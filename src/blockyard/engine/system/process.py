"""When this process started, and its end with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_IMPORTED = time.time()
_PR_SET_PDEATHSIG = 1


def process_start() -> float:
    """When this process started, in seconds since 1970."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return _IMPORTED


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
