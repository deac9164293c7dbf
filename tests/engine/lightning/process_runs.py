"""Runs of several processes, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from blockyard.runs.folder import RunFolder
from tests.support.tiny import TINY

NO_DROPOUT = ("token_mixer.dropout=0.0",)


def start(outputs: Path, kind: str, *overrides: str) -> subprocess.Popen[str]:
    keys = {override.partition("=")[0] for override in overrides} | {"trainer"}
    defaults = [override for override in (*TINY, *NO_DROPOUT) if override.partition("=")[0] not in keys]
    defaults = [override for override in defaults if override != "data.shift=1" or "data" not in keys]
    command = [sys.executable, "-m", "blockyard", "train", f"trainer={kind}", "trainer.accelerator=cpu", *defaults]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, f"outputs={outputs}", *overrides], env=environment, text=True, stderr=subprocess.PIPE
    )


def trained(outputs: Path, kind: str, *overrides: str, code: int = 0) -> RunFolder:
    process = start(outputs, kind, *overrides)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == code, errors
    return RunFolder.open(next(outputs.glob("*/s0")))
