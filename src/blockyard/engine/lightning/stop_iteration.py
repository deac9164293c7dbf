"""StopIteration is an error in a run, wherever a component or a callback raises it.

Lightning's loops take it for the end of an epoch and finish quietly. A run has one epoch without an end for Lightning
and leaves it by other means, so that none is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl


def forbid_stop_iteration(trainer: pl.Trainer) -> None:
    """Let the loops of a trainer raise RuntimeError where they would have ended because of StopIteration."""
    epochs, batches = trainer.fit_loop, trainer.fit_loop.epoch_loop
    for loop, names in ((epochs, ("on_advance_start", "advance", "on_advance_end")), (batches, ("advance",))):
        for name in names:
            setattr(loop, name, _guarded(getattr(loop, name)))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(
                "a component or a callback raised StopIteration, or skipped the rest of an epoch"
            ) from error

    return call
