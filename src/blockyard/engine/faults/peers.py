"""Which process of a run ended it, where this one only notices that another is gone or does not answer."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from blockyard.engine.faults.interrupts import STOPPING, Interrupted
from blockyard.runs.rank_notes import Note, read_notes
from blockyard.runs.status import reason_of

_CONNECTION = re.compile(
    r"gloo|NCCL|TCPStore|c10d|ProcessGroup|Connection (closed|reset)|pair closure|Broken pipe|Socket"
)
_TIMEOUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
_SECONDS = 3.0  # in which processes that notice the same leave their notes


class PeerFailedError(RuntimeError):
    """Another process of the run failed, for a reason that is known."""


class PeerLostError(RuntimeError):
    """Another process of the run is gone or does not answer, and no reason is known."""


class ConnectionLostError(RuntimeError):
    """Another process of the run ended, which this one was told."""


@dataclass(frozen=True)
class Peers:
    """The other processes of a run, as one of them sees them.

    timeout: seconds that a process waits for another
    endings: exit codes of processes that this one has started and that ended before the run, by rank; negative after
        a signal
    """

    path: Path
    rank: int
    world: int
    timeout: float
    endings: Mapping[int, int] = field(default_factory=dict)

    def explain(self, error: BaseException) -> BaseException:
        """What ended the run: `error` itself, or what another process tells, where `error` is only about its absence.

        `Interrupted` if a signal stopped the other process, else `PeerFailedError` or `PeerLostError`, which name it.
        """
        waited = symptom(error) if self.world > 1 else None
        return error if waited is None else self._cause(waited)

    def _cause(self, waited: str) -> BaseException:
        notes = self._notes()
        causes = [note for note in notes if note.waited is None]
        for note in sorted(causes, key=lambda note: note.signum is not None):
            return PeerFailedError(str(note)) if note.signum is None else Interrupted(note.signum, note.rank)
        for rank, code in sorted(self.endings.items()):
            if -code in STOPPING:  # before it could handle the signal
                return Interrupted(-code, rank)
            if not any(note.rank == rank for note in notes):
                return PeerFailedError(f"process {rank} {_ending(code)}")
        silent = sorted(set(range(self.world)) - {self.rank} - {note.rank for note in notes})
        names = f"process {silent[0]}" if len(silent) == 1 else f"processes {', '.join(map(str, silent))}"
        if not silent:  # the others wait too: for this one, or for each other
            return PeerLostError(str(notes[0]))
        if "timeout" in (waited, *(note.waited for note in notes)):
            return PeerLostError(
                f"{names} did not answer within {self.timeout:g} s (trainer.timeout): stopped, hanging or too slow"
            )
        return PeerLostError(f"the connection to {names} was lost, and no reason is known")

    def _notes(self) -> list[Note]:
        """The notes of the others, after the time that they need to write them."""
        until = time.monotonic() + _SECONDS
        while True:
            notes = [note for note in read_notes(self.path) if note.rank != self.rank]
            ended_ranks = {note.rank for note in notes} | set(self.endings)
            any_ended = any(note.waited is None for note in notes)
            if any_ended or len(ended_ranks) >= self.world - 1 or time.monotonic() > until:
                return notes
            time.sleep(0.1)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: f" ({each.name})" for each in signal.Signals}
    return f"was killed by signal {-code}{names.get(-code, '')}"


def symptom(error: BaseException) -> str | None:
    """`timeout` or `lost` if an error only says that another process is absent, else None."""
    if not isinstance(error, RuntimeError):
        return None
    text = reason_of(error)
    if not (isinstance(error, ConnectionLostError | torch.distributed.DistError) or _CONNECTION.search(text)):
        return None
    return "timeout" if _TIMEOUT.search(text) else "lost"
