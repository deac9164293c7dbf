"""Keeps the last state, the one before it, and the best.

Reference: pytorch_lightning.callbacks.ModelCheckpoint

`last.ckpt` and `previous.ckpt` serve resuming: if one is damaged, the other is used. `best.ckpt` has the best
validation metric; it is tested and loaded. A save that fails leaves all three as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from blockyard.contracts import Count
from blockyard.engine.callbacks.base import RunCallback, RunState, StateDict
from blockyard.runs.checkpoint import BEST, LAST


class Checkpoint(RunCallback):
    """Saves at each evaluation, and in between where `every` is set.

    Options:
        every: also save after every so many steps, counted from the start of the run; null saves at evaluations only
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"every"})
    priority = 9  # after all callbacks whose state it saves

    def __init__(self, *, every: Count | None = None) -> None:
        self.every = every
        self.best_value: float | None = None
        self.best_step: int | None = None
        self.best_metrics: dict[str, float] = {}
        self.saved_step: int | None = None
        self._improved = False

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Note whether this is the best so far; `save` comes after every callback."""
        name, mode = state.monitor
        value = values[f"val/{name}"]
        if self.best_value is None:
            better = True
        elif mode == "min":
            better = value < self.best_value
        else:
            better = value > self.best_value
        if better and not math.isnan(value):
            self.best_value = value
            self.best_step = state.step
            self.best_metrics = dict(values)
            self._improved = True
        state.best = self.best_metrics

    def save(self, state: RunState, write: Callable[[Path], None]) -> None:
        """Save the state of `state.step` with `write`; every process must call it.

        The former `last.ckpt` becomes `previous.ckpt` in the same operation: see `runs.checkpoint_io`.
        """
        self.saved_step = state.step
        # The best weights first: after a kill in between, the run goes on from the older `last` and evaluates again.
        if self._improved:
            write(state.checkpoints / BEST)
            self._improved = False
        write(state.checkpoints / LAST)

    def state_dict(self) -> StateDict:
        """Return the best value, its step and its metrics."""
        return {"value": self.best_value, "step": self.best_step, "metrics": self.best_metrics}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the best value, its step and its metrics."""
        self.best_value = state_dict["value"]
        self.best_step = state_dict["step"]
        self.best_metrics = dict(state_dict["metrics"])
