"""Sends a finished run to its loggers."""

from __future__ import annotations

from blockyard.engine.loggers.base import RunLogger
from blockyard.engine.loggers.configured import run_loggers
from blockyard.engine.loggers.presented import presented
from blockyard.runs.folder import METRICS, RunFolder
from blockyard.runs.metrics_table import read_metrics


def replay(folder: RunFolder) -> None:
    """Send metrics.csv and the summary to the loggers of the run's config. Raises what a logger raises."""
    for logger in run_loggers(folder.config):
        _replay(folder, logger)


def _replay(folder: RunFolder, logger: RunLogger) -> None:
    logger.ready()
    with folder.lock():
        logger.prepare(folder)
    try:
        logger.start(folder, presented(folder))
        for row in read_metrics(folder.path / METRICS):
            logger.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})
        logger.finish(folder.status.state, folder.summary())
    except BaseException:
        logger.abandon()
        raise
