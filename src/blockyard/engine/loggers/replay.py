"""Sends a finished run to its logger."""

from __future__ import annotations

from blockyard.engine.loggers.configured import run_logger
from blockyard.runs.folder import METRICS, RunFolder
from blockyard.runs.metrics_table import read_metrics
from blockyard.runs.redact import redact


def replay(folder: RunFolder) -> None:
    """Send metrics.csv and the summary to the logger of the run's config. Raises what the logger raises."""
    logger = run_logger(folder.config)
    logger.ready()
    with folder.lock():
        logger.prepare(folder)
    try:
        logger.start(folder, redact(folder.config))
        for row in read_metrics(folder.path / METRICS):
            logger.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
        logger.finish(folder.status.state, folder.summary())
    except BaseException:
        logger.abandon()
        raise
