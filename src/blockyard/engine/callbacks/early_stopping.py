"""Ends a run whose validation metric no longer improves.

Source: Prechelt 1998, Early Stopping - But When? (Neural Networks: Tricks of the Trade).
Reference: pytorch_lightning.callbacks.EarlyStopping
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from blockyard.contracts import Architecture, Count, DataModule, NonNegative, Objective
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.errors import UserError


class EarlyStopping(RunCallback):
    """Stops after `patience` evaluations in a row without an improvement.

    Options:
        patience: evaluations to wait for a better one
        min_delta: smallest change that counts as better
        monitor: a validation metric, with or without val/; null takes the objective's own
        mode: min or max; null takes the objective's own, and is required with another metric
    """

    turn = 1

    def __init__(
        self,
        *,
        patience: Count = 5,
        min_delta: NonNegative = 0.0,
        monitor: str | None = None,
        mode: str | None = None,
    ) -> None:
        if (monitor is None) != (mode is None):
            raise ValueError(
                f"early_stopping.monitor={monitor} and mode={mode}: give both (monitor=val/loss mode=min) or neither"
            )
        if mode not in (None, "min", "max"):
            raise ValueError(f"early_stopping.mode={mode!r}: write min or max")
        self.patience = patience
        self.min_delta = min_delta
        self.monitor = monitor
        self.mode = mode
        self._best: float | None = None
        self._waited = 0

    def problems(self, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
        """What cannot work with this data and objective, one sentence each; known before anything is read."""
        del data, model
        if self.monitor is None:
            return []
        # The metrics over a split that knows all there is to know: whether this one does is seen later.
        known = set(objective.metrics(SimpleNamespace(bytes_per_token=1.0)))
        if str(self.monitor).removeprefix("val/") in known:
            return []
        return [f"monitor={self.monitor}: there is no such metric; there is {', '.join(sorted(known))}"]

    def evaluated(self, live: RunState, values: dict[str, float]) -> None:
        """Count the evaluations without progress."""
        name, mode = (self.monitor, self.mode) if self.monitor else live.monitor
        key = str(name) if str(name).startswith("val/") else f"val/{name}"
        if key not in values:
            raise UserError(f"early_stopping.monitor={name}: there is {', '.join(sorted(values))}")
        value = values[key] if mode == "min" else -values[key]
        if not math.isnan(value) and (self._best is None or value < self._best - self.min_delta):
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            live.stop = f"{key} did not improve in {self.patience} evaluations"

    def state(self) -> dict[str, Any]:
        """The best value so far and how long ago it was."""
        return {"best": self._best, "waited": self._waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self._best, self._waited = state["best"], state["waited"]
