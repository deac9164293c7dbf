"""A worker process whose parent died before it could look for it ends too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.engine.faults.interrupts import leave_signals_to_main
from blockyard.token_shards.tokenize import start_worker
from tests.support.fork import forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")

Start = Callable[[int], None]
STARTS: dict[str, Start] = {
    "loader": lambda parent: leave_signals_to_main(0),
    "shards": lambda parent: start_worker(None, parent),
    "none": lambda parent: None,
}


def lives_on(start: Start, parent: int, note: Path) -> None:
    """The worker: begins after its parent's end, and writes a note if it is still there later."""
    while os.getppid() == parent:
        time.sleep(0.01)
    start(parent)
    time.sleep(0.5)  # more than `start_worker` takes to look
    note.write_text("alive")
    os._exit(0)


def test_orphaned_workers_end(tmp_path: Path) -> None:
    def work() -> int:
        context = multiprocessing.get_context("fork")
        for kind, start in STARTS.items():
            context.Process(target=lives_on, args=(start, os.getpid(), tmp_path / kind)).start()
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert forked(work) == -signal.SIGKILL
    for _ in range(300):
        if (tmp_path / "none").exists():
            break
        time.sleep(0.1)
    time.sleep(0.5)  # as long as the others would have needed more
    assert {note.name for note in tmp_path.iterdir()} == {"none"}
