"""The most memory that a run has held."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")


def peak_memory(device: torch.device) -> dict[str, Any]:
    """The most memory held so far, in bytes: by torch on a GPU, by the whole process on a CPU."""
    if device.type == "cuda":
        import torch

        return {"bytes": torch.cuda.max_memory_allocated(device), "kind": "cuda allocated"}
    return {"bytes": resident_peak(), "kind": "process resident"}


def resident_peak() -> int:
    """The most bytes of memory that this process has had at once.

    Linux's getrusage counts what the process that started this one held too, so there its /proc is asked.
    """
    if _STATUS.exists() and (found := re.search(rb"^VmHWM:\s+(\d+) kB", _STATUS.read_bytes(), re.MULTILINE)):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
