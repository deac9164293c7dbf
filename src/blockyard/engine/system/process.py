"""The process of a run: when it started, its end with the process that started it, and its peak memory."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch

_IMPORTED = time.time()
_PR_SET_PDEATHSIG = 1
_STATUS = Path("/proc/self/status")


def process_start() -> float:
    """Return when this process started, in seconds since 1970."""
    try:
        # The name of the program, in parentheses, may hold anything. Field 22, ticks since boot, is the start.
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
    if parent is None:
        parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the request above, which then has no effect.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


class PeakMemory(TypedDict):
    """Peak memory in bytes, and the measured quantity."""

    bytes: int
    kind: str


def peak_memory(device: torch.device) -> PeakMemory:
    """Return the peak memory so far, in bytes: allocated by torch on a GPU, resident in the whole process on a CPU."""
    if device.type == "cuda":
        import torch

        return {"bytes": torch.cuda.max_memory_allocated(device), "kind": "cuda allocated"}
    return {"bytes": resident_peak(), "kind": "process resident"}


def resident_peak() -> int:
    """Return the largest resident set of this process so far, in bytes.

    Linux's getrusage includes the memory that the parent process held before, so there /proc is read instead.
    """
    if _STATUS.exists() and (match := re.search(rb"^VmHWM:\s+(\d+) kB", _STATUS.read_bytes(), re.MULTILINE)):
        return int(match[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
