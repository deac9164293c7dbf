"""Watches the other processes of a run from a thread of the main one.

The main process usually notices by itself that another one is gone: the connection breaks. It does not while it waits
for that process to join, or computes without the others for a long time.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from blockyard.runs.rank_notes import read_notes

_INTERVAL = 0.25  # seconds
_GRACE = 10.0  # seconds in which the main process can notice by itself


class ChildWatch(threading.Thread):
    """Calls `abandon` where a process failed and the main thread goes on regardless. A thread that ends with Python.

    children: the processes, which may end with exit code 0 at any time
    path: of the run, where a process leaves a note of its reason
    abandon: called with the exit codes that are not 0, by rank
    """

    def __init__(
        self,
        children: Sequence[subprocess.Popen[bytes]],
        path: Path,
        abandon: Callable[[dict[int, int]], None] | None,
        *,
        grace: float = _GRACE,
    ) -> None:
        super().__init__(daemon=True, name="child-watch")
        self.children = list(children)
        self.path = path
        self.abandon = abandon
        self.grace = grace
        self._closed = threading.Event()

    def run(self) -> None:
        """Watch until closed, or until a process failed."""
        while not self._closed.wait(_INTERVAL):
            if any(child.poll() for child in self.children) or read_notes(self.path):
                if not self._closed.wait(self.grace) and self.abandon is not None:
                    self.abandon(self._kill())
                return

    def _kill(self) -> dict[int, int]:
        """Kill the processes that are still there; the exit codes of those that had failed before."""
        codes = [child.poll() for child in self.children]
        for child in self.children:
            child.kill()
        return {rank: code for rank, code in enumerate(codes, start=1) if code}

    def close(self) -> None:
        """End the watch: the main thread has left training."""
        self._closed.set()
