"""Peak memory of a run."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")


class PeakMemory(TypedDict):
    """Peak memory in bytes, and what it measures."""

    bytes: int
    kind: str


def peak_memory(device: torch.device) -> PeakMemory:
    """Peak memory so far, in bytes: allocated by torch on a GPU, resident in the whole process on a CPU."""
    if device.type == "cuda":
        import torch

        return {"bytes": torch.cuda.max_memory_allocated(device), "kind": "cuda allocated"}
    return {"bytes": resident_peak(), "kind": "process resident"}


def resident_peak() -> int:
    """The largest resident set of this process so far, in bytes.

    Linux's getrusage includes what the parent process held before, so there /proc is read instead.
    """
    if _STATUS.exists() and (match := re.search(rb"^VmHWM:\s+(\d+) kB", _STATUS.read_bytes(), re.MULTILINE)):
        return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
