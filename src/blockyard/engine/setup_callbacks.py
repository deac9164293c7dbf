"""The callbacks of a run, told apart: its own, and Lightning's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl

from blockyard.config.lightning import refusal
from blockyard.engine.callbacks.base import RunCallback
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.errors import UserError


def split_callbacks(named: Mapping[str, Any]) -> tuple[dict[str, RunCallback], tuple[pl.Callback, ...]]:
    """The run's callbacks by name, one that saves among them, and Lightning's. Raises UserError for other objects."""
    run_callbacks: dict[str, RunCallback] = {}
    lightning_callbacks = []
    for name, callback in named.items():
        if isinstance(callback, RunCallback):
            run_callbacks[name] = callback
        elif isinstance(callback, pl.Callback):
            reason = refusal(type(callback))
            if reason:
                raise UserError(f"callbacks.{name}: {reason}")
            lightning_callbacks.append(callback)
        else:
            raise UserError(
                f"callbacks.{name}: {type(callback).__name__} is neither a "
                "blockyard.engine.callbacks.base.RunCallback nor a pytorch_lightning.Callback"
            )
    if not any(isinstance(callback, Checkpoint) for callback in run_callbacks.values()):
        run_callbacks[""] = Checkpoint()
    return run_callbacks, tuple(lightning_callbacks)
