"""Ends a run whose validation metric no longer improves.

Source: Prechelt 1998, Early Stopping - But When? (Neural Networks: Tricks of the Trade).
Reference: pytorch_lightning.callbacks.EarlyStopping
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from blockyard.contracts import Architecture, Count, DataModule, NonNegative, Objective, Text, any_split
from blockyard.engine.callbacks.base import RunCallback, RunState, StateDict
from blockyard.errors import UserError


class EarlyStopping(RunCallback):
    """Stops after `patience` evaluations in a row without an improvement.

    Options:
        patience: evaluations to wait for a better one
        min_delta: smallest change that counts as better
        monitor: a validation metric, with or without val/; null takes the objective's own
        mode: min or max; null takes the objective's own, and is required with another metric
    """

    priority = 1

    def __init__(
        self,
        *,
        patience: Count = 5,
        min_delta: NonNegative = 0.0,
        monitor: Text | None = None,
        mode: Text | None = None,
    ) -> None:
        if (monitor is None) != (mode is None):
            raise ValueError(
                f"early_stopping.monitor={monitor} and mode={mode}: give both (monitor=val/loss mode=min) or neither"
            )
        if mode not in (None, "min", "max"):
            raise ValueError(f"early_stopping.mode={mode!r}: expected min or max")
        self.patience = patience
        self.min_delta = min_delta
        self.monitor = monitor
        self.mode = mode
        self._best: float | None = None
        self._waited = 0

    def problems(self, data: DataModule, objective: Objective, model: Architecture) -> list[str]:
        """Return the problems with this data and objective, one sentence each; known before anything is read."""
        if self.monitor is None:
            return []
        # The metrics over a split that has every attribute: whether the real one has them is seen later.
        names = set(objective.metrics(any_split()))
        if str(self.monitor).removeprefix("val/") in names:
            return []
        return [f"monitor={self.monitor}: unknown metric; the objective has {', '.join(sorted(names))}"]

    def remarks(self, every: int | None, total: int) -> Iterator[str]:
        """Yield a note where the run is not evaluated before its last step.

        every: steps between two evaluations, None for an epoch; total: steps of the run
        """
        if every is not None and every >= total:
            yield (
                f"callbacks.early_stopping cannot stop this run: trainer.eval_every={every}, and the run has {total} "
                "steps; trainer.eval_every=null evaluates each epoch"
            )

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Count the evaluations without progress."""
        name, mode = state.monitor
        if self.monitor:
            name = self.monitor
            mode = self.mode or mode
        key = f"val/{name.removeprefix('val/')}"
        if key not in values:
            raise UserError(f"early_stopping.monitor={name}: unknown metric; the run has {', '.join(sorted(values))}")
        value = values[key] if mode == "min" else -values[key]
        if not math.isnan(value) and (self._best is None or value < self._best - self.min_delta):
            self._best = value
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            state.stop = f"{key} did not improve in {self.patience} evaluations"

    def state_dict(self) -> StateDict:
        """Return the best value so far and the evaluations since."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the best value and the evaluations since."""
        self._best, self._waited = state_dict["best"], state_dict["waited"]
