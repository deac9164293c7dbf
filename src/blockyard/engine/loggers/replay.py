"""Telling a logger of a run that is done already."""

from __future__ import annotations

from blockyard.config.build import Components
from blockyard.runs.folder import METRICS, RunFolder
from blockyard.runs.metrics_table import read_metrics
from blockyard.runs.redact import redact


def retell(folder: RunFolder) -> None:
    """Every row of metrics.csv and the summary, to the logger of the run's config. Raises whatever it raises."""
    logger = Components(folder.config).node("logger")
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
