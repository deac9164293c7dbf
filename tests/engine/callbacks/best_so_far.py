"""A callback of a user's that reads the best metrics so far."""

from __future__ import annotations

from blockyard.engine.callbacks.base import RunCallback, RunState


class BestSoFar(RunCallback):
    """Adds a column with the best validation loss so far, which every callback can see."""

    def metrics(self, state: RunState) -> dict[str, float]:
        return {"best": state.best["val/loss"]} if state.best else {}
