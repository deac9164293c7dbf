"""How a process of a run that is not the main one ends: it writes nothing but a note of the reason."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from blockyard.engine.faults.ending import cause_of
from blockyard.engine.faults.interrupts import Interrupted, Interrupts
from blockyard.engine.faults.peers import Peers, symptom
from blockyard.runs.rank import started_by_run
from blockyard.runs.rank_notes import Note, write_note
from blockyard.runs.status import reason_of

log = logging.getLogger("blockyard")

_SECONDS = 20.0  # for the main process to record a reason and end


class Training(Protocol):
    """The training of one process of a run. trained: whether it ended by itself, rather than by an error."""

    trained: bool

    @property
    def peers(self) -> Peers:
        """The other processes of the run."""

    def fit(self) -> None:
        """Train to the end, or until interrupted."""


def fit_worker_rank(path: Path, rank: int, prepare: Callable[[Interrupts], Training]) -> int:
    """Train until the run ends or this process fails; return the exit code of this process, not of the run.

    path: of the run; prepare: does everything up to the first step
    """
    job = None
    with Interrupts() as interrupts:
        try:
            job = prepare(interrupts)
            job.fit()
        except Interrupted as stop:
            if job is None or not job.trained:  # alone: the others are to know why
                write_note(path, Note(rank, str(stop), stop.signum))
                abort_rank(seconds=0, kill=False)
        except BaseException as error:
            interrupts.close()
            waited = symptom(error)
            write_note(path, Note(rank, reason_of(cause_of(error)), waited=waited))
            seconds = _SECONDS
            if job is not None and waited:  # the notes of the others tell more
                reason = job.peers.explain(error)
                write_note(path, Note(rank, str(reason), waited=waited))
                log.warning("process %s: %s", rank, reason)
            else:
                log.warning("process %s failed: %s", rank, reason_of(cause_of(error)))
                if job is not None:  # the main process may notice only when its own time limit is over
                    seconds = max(seconds, job.peers.timeout)
            abort_rank(seconds=seconds, kill=started_by_run())
            return 1
    return 0


def abort_rank(*, seconds: float, kill: bool) -> None:
    """In a failed process that is not the main one: close the connections, so that the main one notices.

    Then give the main process time to record the reason and end. One that is still there afterwards hangs or was
    stopped.

    kill: end it then; for processes that the main one has started
    """
    disconnect()
    # A process whose parent has ended gets another parent.
    parent = os.getppid()
    until = time.monotonic() + seconds
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.1)
    if kill and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


def disconnect() -> None:
    """Close the connections to the other processes of the run."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.distributed.destroy_process_group()
