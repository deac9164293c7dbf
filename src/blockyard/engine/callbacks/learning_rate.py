"""Logs the learning rate beside the training metrics.

Reference: pytorch_lightning.callbacks.LearningRateMonitor
"""

from __future__ import annotations

from typing import Any, ClassVar

from blockyard.engine.callbacks.base import RunCallback, RunState


class LearningRate(RunCallback):
    """A column `lr`: the rate of the last update."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only watches

    def __init__(self) -> None:
        pass

    def measure(self, live: RunState) -> dict[str, Any]:
        """The rate of the first parameter group."""
        return {"lr": live.learner.learning_rate()}
