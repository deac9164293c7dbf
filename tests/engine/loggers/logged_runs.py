"""Runs that only log: a folder, and metrics sent to a logger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from blockyard.engine.loggers import RunLog, RunLogger
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import read_metrics
from blockyard.runs.start import create_run

BOUND = 60.0  # seconds: what a run may wait for a logger, and what a busy machine adds; a hang is longer
STEPS = range(1, 30)


def run_folder(outputs: Path, **more: Any) -> RunFolder:
    """The folder of a run with a short config."""
    config = {"seed": 0, "name": "run", "outputs": str(outputs), "tags": ["t1"], "model": {"dim": 4}, **more}
    return create_run(config, command=["test"])


def log_run(folder: RunFolder, logger: RunLogger | None, **more: Any) -> float:
    """Log metrics of a whole run, and return the seconds that start, logging and finish cost it."""
    log = RunLog(folder, logger, **{"finish_seconds": BOUND, **more})
    started = time.monotonic()
    log.start()
    for step in STEPS:
        log.log(step, {"train/loss": 1 / step})
    log.finish("done", {"test/accuracy": 0.5})
    took = time.monotonic() - started
    assert [row["step"] for row in read_metrics(folder.path / "metrics.csv")] == list(STEPS)
    folder.release()
    return took
