"""Attempts at a run, each in a process of its own, that the kernel may kill at any moment.

attempt -- SIGKILL --> attempt -- SIGKILL --> ... --> attempt: done, or done already
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.run import train_and_print
from blockyard.runs.folder import RunFolder
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.runs.start import create_run
from tests.battery.data_files import accept_small_cifar
from tests.battery.kill_timer import Moment, kill_this_process
from tests.support.fork import forked
from tests.support.tiny import Configured

MARK = "BLOCKYARD_TEST_ATTEMPT"  # in the environment of every process that an attempt starts


@dataclass(frozen=True)
class Attempt:
    """How one attempt ended.

    code: exit code, -9 after SIGKILL; output: what it printed; mark: of its processes
    cpu, wall: seconds that it took, 0.0 where it was killed
    """

    code: int
    output: str
    mark: str
    group: int
    cpu: float = 0.0
    wall: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


def attempt(run: Configured, kill: Moment | None = None, before: Callable[[], None] | None = None) -> Attempt:
    """Train a config, from wherever its folder stands, as the command does; `before` runs first in the new process."""
    config, choices = run
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as scratch:
        note, printed = Path(scratch) / "note", Path(scratch) / "printed"

        def work() -> int:
            os.setpgid(0, 0)
            os.environ[MARK] = mark
            note.write_text(json.dumps({"group": os.getpid()}))
            output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            accept_small_cifar()
            if before is not None:
                before()
            began = time.monotonic()
            if kill is not None:
                kill_this_process(kill)
            try:
                folder = create_run(config, command=["test"], choices=choices)
            except AlreadyDoneError:
                return 0
            code = train_and_print(folder, folder.resumes)
            times = {"cpu": time.process_time(), "wall": time.monotonic() - began}
            note.write_text(json.dumps({"group": os.getpid(), **times}))
            return code

        code = forked(work, limit=300)
        text = note.read_text()
        return Attempt(code, printed.read_text(errors="replace"), mark, **json.loads(text or '{"group": 0}'))


def strike(step: int, signum: int, *, micro_batch: int = 0) -> Callable[[], None]:
    """What makes a process send itself a signal as it begins a micro-batch of step `step`, counted from 0."""

    def install() -> None:
        original = LoopCallback.on_train_batch_start

        def struck(self: LoopCallback, *arguments: Any) -> None:
            original(self, *arguments)
            if self._batches == step * self.intervals.micro_batches + micro_batch:
                os.kill(os.getpid(), signum)

        LoopCallback.on_train_batch_start = struck  # type: ignore[method-assign]

    return install


def copy_at(steps: Collection[int], into: Path) -> Callable[[], None]:
    """What makes a process copy its run after each of these steps to `into`/STEP: what SIGKILL would leave then."""

    def install() -> None:
        original = LoopCallback.on_train_batch_start, LoopCallback.on_train_end

        def copied(self: LoopCallback) -> None:
            run, batches, size = self.state.checkpoints.parent, self._batches, self.intervals.micro_batches
            if batches // size in steps and not batches % size:
                shutil.copytree(run, into / str(batches // size) / run.parent.name / run.name, symlinks=True)

        def begins(self: LoopCallback, *arguments: Any) -> None:
            copied(self)
            original[0](self, *arguments)

        def ends(self: LoopCallback, *arguments: Any) -> None:
            original[1](self, *arguments)
            copied(self)

        LoopCallback.on_train_batch_start = begins  # type: ignore[method-assign]
        LoopCallback.on_train_end = ends  # type: ignore[method-assign]

    return install


def run_folder(outputs: Path) -> RunFolder:
    """The only run below `outputs`."""
    (path,) = outputs.glob("*/s0")
    return RunFolder.open(path)


def processes_of(attempts: list[Attempt]) -> list[str]:
    """Processes of ended attempts that still live: members of their groups, or with their mark."""
    groups, marks = {each.group for each in attempts}, [f"{MARK}={each.mark}".encode() for each in attempts]
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            marked = any(mark in (entry / "environ").read_bytes() for mark in marks)
            if state not in "ZX" and (int(group) in groups or marked):
                processes.append(f"{entry.name} {(entry / 'cmdline').read_text()[:200]}")
        except OSError:  # it has just ended
            continue
    return processes


def wait_for_processes(attempts: list[Attempt], seconds: float = 30) -> list[str]:
    """Processes of ended attempts that still live after so long; torch's loader workers look every 5 s."""
    until = time.monotonic() + seconds
    while (left := processes_of(attempts)) and time.monotonic() < until:
        time.sleep(0.2)
    return left
