"""Worker processes of a loader: one that was stopped (SIGSTOP) and not continued, and too few open files for them.

A DataLoader limits its wait for the next batch. It does not limit the wait for the memory of a batch that is already
in its queue: torch asks the worker process for the file behind it, and a stopped process never answers.

`StoppedWorkers` goes with the first release after torch 2.14 (written for 2.14.1, November 2026) whose DataLoader
limits that wait by its `timeout`. `check_open_files` is no library's fault, and stays.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from blockyard.errors import UserError

_INTERVAL = 0.5  # seconds
_PER_WORKER = 6  # open files: pipes and semaphores of its queues, and the batch in transfer
_SPARE = 24  # checkpoints, the metrics, a connection of the logger


class StoppedWorkers(threading.Thread):
    """Kills worker processes that stay stopped, so that the training process fails instead of waiting for them.

    It reads the state of each process from `/proc` and does nothing on systems without it.

    pids: of the worker processes; timeout: seconds that one may be stopped
    killed: the workers that this thread killed
    """

    def __init__(self, pids: Sequence[int], timeout: float) -> None:
        super().__init__(daemon=True, name="stopped-workers")
        self.pids = list(pids)
        self.timeout = timeout
        self.killed: list[int] = []
        self._closed = threading.Event()

    def run(self) -> None:
        """Watch until closed."""
        since: dict[int, float] = {}
        while not self._closed.wait(min(_INTERVAL, self.timeout)):
            for pid in self.pids:
                if not _is_stopped(pid):
                    since.pop(pid, None)
                elif time.monotonic() - since.setdefault(pid, time.monotonic()) >= self.timeout:
                    self.killed.append(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the watch."""
        self._closed.set()


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The name of a program, in parentheses, may hold spaces and parentheses. The state follows the last one.
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def check_open_files(workers: int) -> None:
    """Raise UserError if this process may not open the files that `workers` processes for its data need."""
    folder = Path("/proc/self/fd")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if not workers or limit == resource.RLIM_INFINITY or not folder.exists():
        return
    needed = len(os.listdir(folder)) + workers * _PER_WORKER + _SPARE
    if needed > limit:
        raise UserError(
            f"trainer.num_workers={workers} needs about {needed} open files, and this process may open {limit}; "
            f"raise the limit (ulimit -n {needed}), or use trainer.num_workers=0"
        )
