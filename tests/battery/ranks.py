"""Runs of two processes whose second one is forked from the first, with whatever a case has planted in it.

A new Python takes seconds to import what a fork has; `tests/engine/lightning/test_processes.py` starts real ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.lightning import processes
from blockyard.engine.run import train
from blockyard.runs.folder import RunFolder
from blockyard.runs.rank import rank_of
from blockyard.runs.start import create_run
from tests.support.engine_runs import config
from tests.support.tiny import ONE_BATCH, ONE_LAYER, TEXT, steps

TWO = (
    *("logger=none", "callbacks=quiet", "trainer.accelerator=cpu", "trainer.precision=32", "trainer.devices=2"),
    *(*ONE_LAYER, "data.batch_size=64", *steps(12, 4), "trainer.log_every=4", *ONE_BATCH, "data.eval_batch_size=32"),
    "trainer.timeout=12",
)


# Text whose sequences are cut between the two.
CUT = (
    *(each for each in TEXT if not each.startswith(("trainer=", "trainer.max_steps", "trainer.eval_every"))),
    *("tokenizer=byte", "trainer.accelerator=cpu", "trainer.devices=2", *steps(12, 4), "trainer.timeout=12"),
)


class ForkedRank:
    """What `subprocess.Popen` is to the launcher: `blockyard _cell RUN_DIR` in a fork of this process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.environ.clear()
                os.environ.update(env)
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                from blockyard.commands.cell import run

                code = run([str(command[-1])])
            except BaseException:  # as Python ends a process
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        (Path(command[-1]).parents[1] / f"pid-{self.pid}").touch()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another thread was faster
                time.sleep(0.05)
                return self.returncode
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        until = time.monotonic() + (3600 if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fork_ranks() -> None:
    """In a process that is to be the main one of a run: fork the others instead of starting them anew."""
    processes.subprocess = _Subprocess()  # type: ignore[assignment]


class _Subprocess:
    Popen = ForkedRank
    TimeoutExpired = subprocess.TimeoutExpired


def rank() -> int:
    """The rank of this process in a run of two devices."""
    return rank_of(2)


def on_step(step: int, of_rank: int, act: Callable[[], Any]) -> None:
    """Plant `act` before the step after `step`, in one process of the runs that this one starts."""
    original = LoopCallback.on_train_batch_start

    def planted(self: LoopCallback, *arguments: Any) -> None:
        original(self, *arguments)
        if self.state.step == step and rank() == of_rank:
            act()

    LoopCallback.on_train_batch_start = planted  # type: ignore[method-assign]


def two(outputs: Path, kind: str, *overrides: str, base: tuple[str, ...] = TWO) -> Callable[[], int]:
    """Training with two processes, a process that calls this and a fork of it; returns the exit code."""
    plain, choices = config(outputs, f"trainer={kind}", *overrides, base=base)

    def work() -> int:
        fork_ranks()
        with create_run(plain, command=["test"], choices=choices) as run_folder:
            return train(run_folder, resume=run_folder.resumes)

    return work


def only_run(outputs: Path) -> RunFolder:
    """The one run below a folder."""
    (path,) = outputs.glob("*/s0")
    return RunFolder.open(path)


def left(outputs: Path) -> list[int]:
    """The processes of a run that are still there some seconds after its end."""
    pids = [int(path.name.removeprefix("pid-")) for path in outputs.glob("pid-*")]
    alive = pids
    for _ in range(100):
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not alive:
            break
        time.sleep(0.1)
    return alive
