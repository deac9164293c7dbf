"""The logger that Lightning callbacks see: what they log becomes columns of the run's metrics."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from pytorch_lightning.loggers.logger import Logger

from blockyard.engine.callbacks.base import RunState


class MetricsBridge(Logger):
    """Passes metrics on to metrics.csv and the run's logger, under the number of the step they belong to.

    log: writes the metrics of a step; does nothing in the processes that do not write
    """

    def __init__(self, state: RunState, log: Callable[[int, dict[str, float]], None]) -> None:
        super().__init__()
        self.state = state
        self.log = log

    @property
    def name(self) -> str:
        """The run's name."""
        return self.state.name

    @property
    def version(self) -> str:
        """Empty: a run has one version."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self.state.checkpoints.parent)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log scalars. Lightning numbers steps from 0, metrics.csv from 1; its epoch is in a column already."""
        number = self.state.step if step is None else max(self.state.step, min(step + 1, self.state.total))
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if values:
            self.log(number, values)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run's config is written before the first step."""
