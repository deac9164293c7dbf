"""Tiny runs with a logger, each in a process of its own, compared with the run of `logger=none`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blockyard.engine.loggers import _wandb, wandb
from blockyard.engine.loggers.run_log import RunLog
from blockyard.engine.run import train
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import folder
from tests.support.fork import forked
from tests.support.tiny import ONE_LAYER, TINY, steps

# One row at every step, an evaluation in the middle and one at the end.
FEW = (*TINY, *ONE_LAYER, *steps(12, 6), "trainer.log_every=1")
LIMIT = 300.0


@dataclass(frozen=True)
class Logged:
    """A run that ended: its exit code, the seconds that it waited for its logger, and what it printed."""

    folder: RunFolder
    code: int
    waited: float
    printed: str

    @property
    def lines(self) -> list[str]:
        """What was printed about the logger."""
        return [
            line
            for line in self.printed.splitlines()
            if re.search(r"^logger |^a thread of |^W&B |trackio failed", line)
        ]


def logged(
    outputs: Path,
    *overrides: str,
    sabotage: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
    patient: bool = False,
) -> Logged:
    """Train in a fork.

    sabotage: called there before the run, to break a logger of that process
    patient: a logger is waited for as long as it takes, for tests of what it records
    """
    outputs.mkdir(parents=True, exist_ok=True)
    clock, printed = outputs / "waited.txt", outputs / "printed.txt"

    def work() -> int:
        os.chdir(outputs)
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(2, 1)
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            del os.environ[name]
        os.environ.update({"HOME": str(outputs), "NETRC": str(outputs / "netrc"), **(environment or {})})
        RunLog.finish = timed(RunLog.finish, clock)  # type: ignore[method-assign]
        if patient:
            _wait()
        if sabotage is not None:
            sabotage()
        run_folder = folder(outputs, *overrides, base=FEW)
        return train(run_folder, resume=run_folder.resumes)

    code = forked(work, limit=LIMIT)
    (run_folder,) = [path.parent for path in outputs.glob("*/s0/config.yaml")]
    waited = float(clock.read_text()) if clock.exists() else 0.0
    return Logged(RunFolder.open(run_folder), code, waited, printed.read_text(encoding="utf-8", errors="replace"))


def _wait() -> None:
    """Give a logger on a busy machine ten times as long."""
    (RunLog.__init__.__kwdefaults__ or {})["finish_seconds"] = 120.0
    for name in ("INIT_SECONDS", "FINISH_SECONDS", "TEARDOWN_SECONDS"):
        setattr(wandb, name, 60.0)
    _wandb._PROBE_SECONDS = 60.0


def timed(method: Callable[..., None], clock: Path) -> Callable[..., None]:
    """`method`, which writes to a file how long it took."""

    def call(self: RunLog, *arguments: object) -> None:
        started = time.monotonic()
        try:
            method(self, *arguments)
        finally:
            clock.write_text(str(time.monotonic() - started))

    return call
