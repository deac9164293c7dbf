"""No logger: the metrics are in the run folder only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.config.tree import Node
from blockyard.engine.loggers.base import RunLogger
from blockyard.runs.folder import RunFolder


class NoLogger(RunLogger):
    """Does nothing; metrics.csv is always written."""

    def start(self, folder: RunFolder, config: Node) -> None:
        """Do nothing."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Do nothing."""

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Do nothing, without a warning: the config requests nothing but the folder."""
        return None
