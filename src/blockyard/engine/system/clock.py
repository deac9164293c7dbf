"""When this process started."""

from __future__ import annotations

import os
import time
from pathlib import Path

_IMPORTED = time.time()


def process_start() -> float:
    """When this process started, in seconds since 1970."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return _IMPORTED
