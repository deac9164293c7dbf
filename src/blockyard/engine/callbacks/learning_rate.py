"""Logs the learning rate with the training metrics.

Reference: pytorch_lightning.callbacks.LearningRateMonitor
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.engine.callbacks.base import RunCallback, RunState


class LearningRate(RunCallback):
    """Adds a column `lr`: the learning rate of the last step."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes

    def __init__(self) -> None:
        pass

    def metrics(self, state: RunState) -> dict[str, float]:
        """The rate of the first parameter group."""
        return {"lr": state.learner.step.lr}
