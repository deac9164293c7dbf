"""Decouples a run from its loggers: the run continues whatever they do."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from blockyard.engine.loggers.base import RunLogger
from blockyard.engine.loggers.feed import Feed
from blockyard.engine.loggers.own_generators import own_generators
from blockyard.engine.loggers.presented import presented
from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")

_FINISH_SECONDS = 12.0


class RunLog:
    """Writes metrics.csv in this thread, and feeds each logger in another. For the main process.

    finish_seconds: the longest that the end of a run waits for all loggers together
    """

    def __init__(self, folder: RunFolder, *loggers: RunLogger | None, finish_seconds: float = _FINISH_SECONDS) -> None:
        self.folder = folder
        self.finish_seconds = finish_seconds
        self._feeds = [Feed(folder, logger) for logger in loggers if logger is not None]
        self._finished = False
        for feed in self._feeds:
            with own_generators():
                feed.logger.ready()

    def start(self) -> None:
        """Save the loggers' ids, then start their threads."""
        for feed in self._feeds:
            feed.start(presented(self.folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step in metrics.csv and with the loggers."""
        plain = {name: float(value) for name, value in values.items() if value is not None}
        self.folder.metrics.append(step, plain)
        for feed in self._feeds:
            feed.log(step, plain)

    def finish(self, state: str, summary: Mapping[str, Any] | None = None) -> None:
        """Close the record; returns within `finish_seconds`. A second call does nothing."""
        if self._finished:
            return
        self._finished = True
        until = time.monotonic() + self.finish_seconds
        for feed in self._feeds:
            feed.end(state, summary or {})
        for feed in self._feeds:
            feed.join(max(until - time.monotonic(), 0.0), self.finish_seconds)
        self.folder.metrics.close()
