"""What some work takes of memory, measured in a process of its own.

The high-water mark of a process that has done other work before hides whatever stays below it.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support.fork import forked


def in_child(work: Callable[[], str], limit: float = 120) -> tuple[str, int]:
    """Return the text that `work` returns, and by how many MiB the memory of its process grew at most."""
    with tempfile.TemporaryDirectory() as scratch:
        text, taken, trace = (Path(scratch) / name for name in ("text", "taken", "trace"))

        def measured() -> int:
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew, see proc(5)
            before = _status("VmRSS")
            try:
                text.write_text(work(), errors="backslashreplace")
            except BaseException:
                trace.write_text(traceback.format_exc())
                return 1
            taken.write_text(str(_status("VmHWM") - before))
            return 0

        code = forked(measured, limit)
        assert code == 0, trace.read_text() if trace.exists() else f"ended with {code}"
        return text.read_text(), int(taken.read_text()) // 1024


def _status(key: str) -> int:
    """Return an entry of /proc/self/status in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
