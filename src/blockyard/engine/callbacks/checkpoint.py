"""Keeps the last state, the one before it, and the best.

Reference: pytorch_lightning.callbacks.ModelCheckpoint

`last.ckpt` and `previous.ckpt` are for resuming: if one is damaged, the other goes on. `best.ckpt`
is the one with the best validation metric; it is tested and loaded. A save that fails leaves all
three as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from blockyard.contracts import Count
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.runs.checkpoint import BEST, LAST


class Checkpoint(RunCallback):
    """Saves at each evaluation, and in between if told so.

    Options:
        every: also save every so many updates, counted from 0; null only at evaluations
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"every"})
    turn = 9  # after all whose state it saves

    def __init__(self, *, every: Count | None = None) -> None:
        self.every = every
        self.best_value: float | None = None
        self.best_step: int | None = None
        self.best_metrics: dict[str, float] = {}
        self.saved_step: int | None = None
        self._improved = False

    def evaluated(self, live: RunState, values: dict[str, float]) -> None:
        """Note whether this is the best so far; saving itself comes after every watcher."""
        name, mode = live.monitor
        value = values[f"val/{name}"]
        better = self.best_value is None or (value < self.best_value if mode == "min" else value > self.best_value)
        if better and not math.isnan(value):
            self.best_value, self.best_step, self.best_metrics = value, live.step, dict(values)
            self._improved = True
        live.best = self.best_metrics

    def save(self, live: RunState, write: Callable[[Path], None]) -> None:
        """Save the state of `live.step` with `write`, which every process must call.

        What was `last` becomes `previous` in the same stroke: see `runs.checkpoint_io`.
        """
        self.saved_step = live.step
        if self._improved:
            write(live.checkpoints / BEST)
            self._improved = False
        write(live.checkpoints / LAST)

    def state(self) -> dict[str, Any]:
        """What was best."""
        return {"value": self.best_value, "step": self.best_step, "metrics": self.best_metrics}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.best_value, self.best_step = state["value"], state["step"]
        self.best_metrics = dict(state["metrics"])
