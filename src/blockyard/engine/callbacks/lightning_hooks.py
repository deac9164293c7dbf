"""The hooks that Lightning callbacks expect of a training loop, at our intervals.

Lightning sees one epoch without an end and no validation loop: an epoch of the data is a number of steps here, and
evaluation is our own. `EpochBoundary` and `around_validation` call the missing hooks. They exist only in a run
that has Lightning callbacks, so that the others do not pay for them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers.logger import Logger

from blockyard.engine.callbacks.base import RunState
from blockyard.engine.lightning.patches import start_next_epoch


class EpochBoundary(pl.Callback):
    """Ends one epoch and starts the next before the first batch of the next. The first of all callbacks.

    `trainer.current_epoch` counts, and `on_train_epoch_end`, `on_train_epoch_start`, schedulers that step by epoch
    and values logged by epoch work as in Lightning. A resumed run calls `on_train_epoch_start` once more for the
    epoch it resumes in, so that callbacks can set up again all that they do not save; learning rates stay.
    """

    def __init__(self, state: RunState, lightning_callbacks: Sequence[pl.Callback]) -> None:
        self.state = state
        self.lightning_callbacks = lightning_callbacks
        self._resumed = False

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Note whether the run is resumed."""
        self._resumed = trainer.global_step > 0

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Close and open epochs where the step is the first of one."""
        if self._resumed:
            self._resumed = False
            self._start_again(trainer, module)
        while trainer.current_epoch < self.state.step // self.state.steps_per_epoch:
            start_next_epoch(trainer, batch)

    def _start_again(self, trainer: pl.Trainer, module: Any) -> None:
        # A callback may set rates in this hook, as in a first epoch, but the checkpoint has restored the right ones.
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for callback in self.lightning_callbacks:
            callback.on_train_epoch_start(trainer, module)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


@contextmanager
def around_validation(trainer: pl.Trainer, module: Any, lightning_callbacks: Sequence[pl.Callback]) -> Iterator[None]:
    """Call the hooks of validation of Lightning callbacks before and after our evaluation.

    `trainer.callback_metrics` must hold the result at the end of the block. Weights that a callback exchanges for
    the evaluation are exchanged back also where the evaluation is interrupted.
    """
    for callback in lightning_callbacks:
        callback.on_validation_start(trainer, module)
    for callback in lightning_callbacks:
        callback.on_validation_epoch_start(trainer, module)
    try:
        yield
    finally:
        for callback in lightning_callbacks:
            callback.on_validation_epoch_end(trainer, module)
    for callback in lightning_callbacks:
        callback.on_validation_end(trainer, module)


class MetricsBridge(Logger):
    """The logger that Lightning callbacks see: passes metrics on to metrics.csv and the run's logger.

    A value is logged under the number of its step.

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
        number = self.state.step
        if step is not None:
            # Rows of metrics.csv come in order of steps, and Lightning may log a value of an earlier step later.
            number = max(number, min(step + 1, self.state.last_step))
        values = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        if values:
            self.log(number, values)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run's config is written before the first step."""
