"""The other processes of a run: the reason for its end, a watch over them, and the decisions of all.

`Peers` names the process that ended the run, where this one only notices that another is gone or does not answer.

The main process usually notices by itself that another one is gone: the connection breaks. It does not while it waits
for that process to join, or computes without the others for a long time; then `ChildWatch` does, in a thread.

All processes stop after the same step, for the same reason (`agree_on_signal`, `agree_on_end`). Where there is one
process, the answer is its own.

`_CONNECTION` and `_TIMEOUT` read the texts of errors, because torch 2.14 (November 2026) raises a plain RuntimeError
for a lost peer. They go with the first release where gloo and NCCL raise `torch.distributed.DistError` throughout.
`ChildWatch` takes the place of the observer in Lightning 2.6: it kills this process before a reason is recorded. The
watch goes with the first release where the observer calls a function instead.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from blockyard.engine.faults.interrupts import STOPPING, Interrupted, Interrupts
from blockyard.runs.rank_notes import Note, read_notes
from blockyard.runs.status import reason_of

if TYPE_CHECKING:
    import pytorch_lightning as pl

_CONNECTION = re.compile(
    r"gloo|NCCL|TCPStore|c10d|ProcessGroup|Connection (closed|reset)|pair closure|Broken pipe|Socket"
)
_TIMEOUT = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
_SECONDS = 3.0  # in which processes that notice the same leave their notes
_INTERVAL = 0.25  # seconds
_GRACE = 10.0  # seconds in which the main process can notice by itself
_EVERY = 16  # steps between two agreements of several GPUs on signals
_STOP, _PAUSE = 1, 2


class PeerFailedError(RuntimeError):
    """Another process of the run failed, for a reason that is known."""


class PeerLostError(RuntimeError):
    """Another process of the run is gone or does not answer, and no reason is known."""


class ConnectionLostError(RuntimeError):
    """Another process of the run ended, as this one was told."""


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
        """Return the error that ended the run: `error`, or the error of another process if `error` is only its absence.

        `Interrupted` if a signal stopped the other process, else `PeerFailedError` or `PeerLostError`, with its name.
        """
        waited = symptom(error) if self.world > 1 else None
        if waited is None:
            return error
        return self._cause(waited)

    def _cause(self, waited: str) -> BaseException:
        """Return what happened to the other process. waited: `timeout` or `lost`, as this process noticed it."""
        notes = self._notes()
        causes = [note for note in notes if note.waited is None]
        # A failure comes before a signal: a launcher signals the others once one has failed.
        for note in sorted(causes, key=lambda note: note.signum is not None):
            if note.signum is None:
                return PeerFailedError(str(note))
            return Interrupted(note.signum, note.rank)
        for rank, code in sorted(self.endings.items()):
            if -code in STOPPING:  # before it could handle the signal
                return Interrupted(-code, rank)
            if not any(note.rank == rank for note in notes):
                return PeerFailedError(f"process {rank} {_ending(code)}")
        silent = sorted(set(range(self.world)) - {self.rank} - {note.rank for note in notes})
        if not silent:  # the others wait too: for this one, or for each other
            return PeerLostError(str(notes[0]))
        names = f"processes {', '.join(map(str, silent))}"
        if len(silent) == 1:
            names = f"process {silent[0]}"
        if "timeout" in (waited, *(note.waited for note in notes)):
            return PeerLostError(
                f"{names} did not answer within {self.timeout:g} s (trainer.timeout): stopped, hanging or too slow"
            )
        return PeerLostError(f"the connection to {names} was lost, and no reason is known")

    def _notes(self) -> list[Note]:
        """Return the notes of the others, after the time that they need to write them."""
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
    name = ""
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        name = f" ({signal.Signals(-code).name})"
    return f"was killed by signal {-code}{name}"


def symptom(error: BaseException) -> str | None:
    """Return `timeout` or `lost` if an error only says that another process is absent, else None."""
    if not isinstance(error, RuntimeError):
        return None
    text = reason_of(error)
    if not (isinstance(error, ConnectionLostError | torch.distributed.DistError) or _CONNECTION.search(text)):
        return None
    return "timeout" if _TIMEOUT.search(text) else "lost"


class ChildWatch(threading.Thread):
    """Calls `abandon` where a process failed and the main thread goes on regardless. A thread that ends with Python.

    children: the processes; they may end with exit code 0 at any time
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
                # In this time the main thread usually notices by itself, and knows more of what it was doing.
                if not self._closed.wait(self.grace) and self.abandon is not None:
                    self.abandon(self._kill())
                return

    def _kill(self) -> dict[int, int]:
        """Kill the processes that are still there; return the exit codes of the ones that had failed before."""
        codes = [child.poll() for child in self.children]
        for child in self.children:
            child.kill()
        return {rank: code for rank, code in enumerate(codes, start=1) if code}

    def close(self) -> None:
        """End the watch: the main thread has left training."""
        self._closed.set()


def agree_on_signal(trainer: pl.Trainer, interrupts: Interrupts, step: int) -> bool:
    """Return whether a signal reached a process of the run; all record it, so that none takes the run for finished."""
    signum = interrupts.signum or 0
    if trainer.world_size > 1:
        # A signal may reach one process alone; all must stop after the same step. Asking stalls a GPU.
        every = 1 if trainer.strategy.root_device.type == "cpu" else _EVERY
        signum = 0 if step % every else _largest(trainer, signum)
    if signum:
        interrupts.request(signum)
    return bool(signum)


def agree_on_end(trainer: pl.Trainer, stop: str | None, pause: str | None) -> tuple[str | None, str | None]:
    """Return why the run ends (stop) or is left (pause) after this step, by the callbacks of all processes."""
    if trainer.world_size == 1:
        return stop, pause
    request = 0
    if stop:
        request = _STOP
    if pause:
        request = _PAUSE
    # The largest request of any process wins in all of them.
    end = _largest(trainer, request)
    if end == _PAUSE:
        pause = pause or "another process paused the run"
    elif end == _STOP:
        stop = stop or "a callback of another process stopped it"
    return stop, pause


def _largest(trainer: pl.Trainer, number: int) -> int:
    """Return the largest of a number over all processes."""
    local = torch.tensor(number, device=trainer.strategy.root_device)
    return int(trainer.strategy.reduce(local, reduce_op="max"))
