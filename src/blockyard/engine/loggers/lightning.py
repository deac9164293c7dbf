"""Any Lightning `Logger` as a logger of a run.

    blockyard train logger=none logger._target_=pytorch_lightning.loggers.CSVLogger logger.save_dir=logs

Reference: pytorch_lightning.loggers.Logger

It gets the same values as our own loggers, in the same thread: the config without secrets as hyperparameters,
metrics under their steps, and at the end the metrics of the best weights. The options of its constructor are its own;
passwords belong in the environment variables that its library reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from blockyard.config.tree import Node
from blockyard.engine.loggers.base import RunLogger, flatten
from blockyard.runs.folder import RunFolder


class LightningLogger(RunLogger):
    """Adapts `logger`."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self._step = 0

    @property
    def label(self) -> str:
        """The class that is adapted, for messages."""
        return type(self.logger).__name__

    def start(self, folder: RunFolder, config: Node) -> None:
        """Log the config as flat hyperparameters."""
        # Lightning's loggers write nothing on other ranks; a RunLog exists in the main process only.
        rank_zero_only.rank = 0  # type: ignore[attr-defined]
        self._step = folder.status.step or 0
        self.logger.log_hyperparams(flatten(config))
        self.logger.save()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._step = step
        self.logger.log_metrics(dict(values), step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Log the final metrics of a finished run, save and finalize."""
        final = dict(summary.get("metrics") or {})
        if final:
            self.logger.log_metrics(final, step=self._step)
        self.logger.save()
        self.logger.finalize("success" if state == "done" else "failed")
