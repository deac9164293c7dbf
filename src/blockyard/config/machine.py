"""CPU cores and memory of this machine. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def exported_threads() -> int | None:
    """Return the number of CPU threads that OMP_NUM_THREADS names, the first of several; None where it names none."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if text.isdecimal() and int(text):
        return int(text)
    return None


def memory() -> int | None:
    """Return the bytes of memory that this process may use, fewer in a container; None where unknown."""
    limits = [*_granted()]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system tells
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def gpu_memory() -> int:
    """Return the bytes of memory of the smallest GPU."""
    import torch

    return min(torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count()))


def _granted() -> Iterator[int]:
    """Yield the limits of this process's control groups, in either version of Linux's interface."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (GROUPS, "memory.max") if not controllers else (GROUPS / controllers, "memory.limit_in_bytes")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == root.parent:
                break
            try:
                text = (folder / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text.isdecimal():  # or "max"
                yield int(text)
