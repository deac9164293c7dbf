"""What the loop does at a step where it is due: log, evaluate, save. `loop.py` decides when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch

from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.callback_set import CallbackSet
from blockyard.engine.callbacks.nan_guard import check_weights
from blockyard.engine.callbacks.stopwatch import Stopwatch
from blockyard.engine.lightning.hooks import around_validation


class LoopActions:
    """Logs metrics, evaluates the validation split and saves the state; callbacks see each result.

    log_metrics: writes the metrics of a step; does nothing in the processes that do not write
    evaluate: returns the validation metrics, without a prefix
    last_values: everything logged at the last logged steps
    evaluated_step: the last step that was evaluated
    """

    def __init__(
        self,
        state: RunState,
        callbacks: CallbackSet,
        stopwatch: Stopwatch,
        *,
        log_metrics: Callable[[int, dict[str, float]], None],
        evaluate: Callable[[], dict[str, float]],
    ) -> None:
        self.state = state
        self.callbacks = callbacks
        self.stopwatch = stopwatch
        self.last_values: dict[str, float] = {}
        self.evaluated_step = 0
        self._write_metrics = log_metrics
        self._validation_metrics = evaluate
        self._logged = [0, 0]  # rows of metrics.csv over the run, and the step of the last one

    def log_training(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the mean loss since the last time, the metrics of callbacks and the position in the run."""
        state = self.state
        self.stopwatch.pause()
        values: dict[str, Any] = {}
        loss = module.losses.take()
        if loss is not None:
            values["train/loss"] = trainer.strategy.reduce(loss.float(), reduce_op="mean")
        auxiliary = module.auxiliaries.take()
        if auxiliary is not None:
            values["train/auxiliary"] = trainer.strategy.reduce(auxiliary.float(), reduce_op="mean")
        for callback in self.callbacks:
            values |= callback.metrics(state)
        values |= {
            "epoch": state.step / state.steps_per_epoch,
            "samples": state.step * state.batch_size,
            "tokens": state.step * state.batch_size * state.tokens,
        }
        numbers = {name: float(value) for name, value in values.items()}  # waits for the device
        numbers["seconds"] = self.stopwatch.lap()
        self._record(trainer, numbers)
        for callback in self.callbacks:
            callback.on_log(state, numbers)

    def evaluate(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the validation metrics of the weights, and of the other weights that callbacks keep."""
        state = self.state
        with around_validation(trainer, module, self.callbacks.lightning):
            values = {f"val/{name}": value for name, value in self._validation_metrics().items()}
            for average in self.callbacks.averages:
                with self.callbacks.named[average].in_place():
                    values |= {f"val/{name}@{average}": value for name, value in self._validation_metrics().items()}
            self.evaluated_step = state.step
            self._record(trainer, values)
        for callback in self.callbacks:
            callback.on_evaluate(state, values)
        self.stopwatch.resume()

    def save(self, trainer: pl.Trainer, module: Any) -> None:
        """Save a checkpoint of weights that are finite."""
        module.guard.raise_if_bad()
        check_weights(module.model, self.state.step)
        self.callbacks.checkpoint.save(self.state, trainer.save_checkpoint)

    def log_metrics(self, step: int, values: dict[str, float]) -> None:
        """Write the metrics of a step and count its row, so that a resumed run knows whether rows were lost."""
        if not self._logged[0] or step != self._logged[1]:
            self._logged = [self._logged[0] + 1, step]
        self._write_metrics(step, values)

    def _record(self, trainer: pl.Trainer, values: dict[str, float]) -> None:
        self.last_values |= values
        self.log_metrics(self.state.step, values)
        if self.callbacks.lightning:
            trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})

    def state_dict(self) -> dict[str, Any]:
        """What was evaluated and logged last, as plain data."""
        return {"evaluated": self.evaluated_step, "values": self.last_values, "logged": list(self._logged)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.evaluated_step = state_dict["evaluated"]
        self.last_values = dict(state_dict["values"])
        self._logged = list(state_dict.get("logged") or [0, 0])
