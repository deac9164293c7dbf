"""Signals in the processes that load data.

A terminal and most schedulers signal every process of a run. A worker that ended at once would take the batches with
it that the main process needs to finish its step, and the run would fail instead of being interrupted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from types import FrameType

from blockyard.engine.system.parent import end_with_parent

_SECONDS = 5  # that a worker goes on after SIGTERM; who sends it to the worker alone means it


def leave_signals_to_main(_worker: int) -> None:
    """In a worker: ignore the signals that stop a run, end some seconds after SIGTERM, and with the main process.

    torch's own look at the parent does not notice one that died before the worker began to look.
    """
    main = multiprocessing.parent_process()
    end_with_parent(None if main is None else main.pid)
    for each in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _end)
    signal.signal(signal.SIGTERM, _end_soon)


def _end_soon(_signum: int, _frame: FrameType | None) -> None:
    signal.alarm(_SECONDS)


def _end(_signum: int, _frame: FrameType | None) -> None:
    os._exit(0)
