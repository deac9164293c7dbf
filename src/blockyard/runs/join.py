"""The processes of a run besides the first: they wait for the folder that rank 0 creates or resumes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RunFolder
from blockyard.runs.lock import held
from blockyard.runs.not_started import AlreadyDone
from blockyard.runs.status import read_status

_RANK_TIMEOUT = 60.0  # seconds, or trainer.timeout where that is longer


def join_run(path: Path, config: dict[str, Any]) -> RunFolder:
    """Wait for the run that rank 0 creates or resumes; writes nothing.

    Under torchrun or srun every rank runs the whole command. Raises AlreadyDone as rank 0 does, UserError if rank 0
    does not start in time.
    """
    trainer = config.get("trainer")
    seconds = max(_RANK_TIMEOUT, float((trainer if isinstance(trainer, dict) else {}).get("timeout") or 0))
    deadline = time.monotonic() + seconds
    while not ((path / CONFIG).is_file() and held(path) and read_status(path).state == "running"):
        if not config.get("force") and (path / CONFIG).is_file() and read_status(path).finished:
            raise AlreadyDone(RunFolder(path, config))
        if time.monotonic() > deadline:
            raise UserError(f"rank 0 did not start {path} within {seconds:.0f} s")
        time.sleep(0.1)
    return RunFolder(path, config)
