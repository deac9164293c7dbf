"""One try at training a run, and how its end is recorded."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockyard.atomic_files import write_text
from blockyard.engine.baselines import record_baselines
from blockyard.engine.ending import Ending, ending_of
from blockyard.engine.loggers import RunLog
from blockyard.engine.peers import ConnectionLost, PeerLost
from blockyard.engine.system.interrupts import Interrupted, Interrupts
from blockyard.errors import printable

if TYPE_CHECKING:
    from blockyard.engine.callbacks.base import RunCallback
    from blockyard.engine.job import Job
    from blockyard.runs.folder import RunFolder


log = logging.getLogger("blockyard")


@dataclass
class Attempt:
    """One try at training a run: what exists of it when it ends, at whatever point.

    resumed_step: steps that the run had done before, for an end that comes before the checkpoint is read
    """

    folder: RunFolder
    interrupts: Interrupts
    resume: bool
    callbacks: Mapping[str, RunCallback]
    job: Job | None = None
    run_log: RunLog | None = None
    resumed_step: int = 0

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self.job.state.step if self.job else self.resumed_step

    @property
    def started(self) -> bool:
        """Whether a step was taken in this process."""
        return self.job is not None and self.job.state.step != self.job.state.start_step


def ending_after(error: BaseException, attempt: Attempt) -> Ending:
    """The ending for an error; where it is only about another process, that of the other process."""
    attempt.interrupts.waiting = True  # signals are recorded while the others tell what happened
    cause = attempt.job.peers.explain(error) if attempt.job else error
    if isinstance(cause, PeerLost) and attempt.interrupts.signum is not None:
        # Whoever ends a run from outside signals all of its processes, and another one was faster.
        cause = Interrupted(attempt.interrupts.signum)
    ending = ending_of(cause, attempt.step)
    if cause is not error and ending.trace:
        ending.trace = ending_of(error, attempt.step).trace
    return ending


def record_ending(attempt: Attempt, ending: Ending) -> None:
    """Write how the run ended, and close what it had opened."""
    folder = attempt.folder
    folder.set_status(ending.state, ending.reason, step=attempt.step, exit_code=ending.code)
    if ending.reason:
        log.warning("%s: %s", ending.state, printable(ending.reason))
    if ending.trace:  # after the status: a full disk may have room for one of them only
        with contextlib.suppress(OSError):
            write_text(folder.path / "error.txt", ending.trace)
    if ending.state == "done":
        ending.summary = record_baselines(attempt, ending.summary)
    close(attempt, ending)


def abandon(attempt: Attempt, endings: dict[int, int]) -> None:
    """In a thread, where another process failed and this one does not notice: record that and end this process."""
    assert attempt.job is not None
    attempt.job.endings |= endings
    ending = ending_of(attempt.job.peers.explain(ConnectionLost()), attempt.step)
    attempt.interrupts.close()
    record_ending(attempt, ending)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(ending.code)


def close(attempt: Attempt, ending: Ending) -> None:
    """Close the loggers of an attempt, if it had opened them."""
    if attempt.run_log is None:
        return
    try:
        attempt.run_log.finish(ending.state, ending.summary)
    except OSError as error:
        log.warning("the metrics of %s could not be closed: %s", attempt.folder.path, error)
