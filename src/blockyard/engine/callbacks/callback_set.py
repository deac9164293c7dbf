"""The callbacks of one run: our own, by the names that their states are saved under, and Lightning's."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pytorch_lightning as pl

from blockyard.engine.callbacks.base import RunCallback, RunState, StateDict
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.runs.status import reason_of

log = logging.getLogger("blockyard")


class CallbackSet:
    """Iterates over our callbacks in the order of their priorities.

    named: our callbacks by name
    lightning: Lightning callbacks of the config; Lightning calls them itself
    at_steps: our callbacks that are called at every step
    """

    def __init__(self, named: Mapping[str, RunCallback], lightning: tuple[pl.Callback, ...] = ()) -> None:
        self.named = named
        self.lightning = lightning
        self.ordered = sorted(named.values(), key=lambda callback: callback.priority)
        # A hook that nobody overrides is not called: a step at which nothing is due costs a comparison.
        self.at_steps = [callback for callback in self.ordered if type(callback).on_step is not RunCallback.on_step]

    def __iter__(self) -> Iterator[RunCallback]:
        return iter(self.ordered)

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the callback that saves."""
        return next(callback for callback in self if isinstance(callback, Checkpoint))

    @property
    def averages(self) -> list[str]:
        """Return the names of the callbacks that keep other weights of the model."""
        return [name for name, callback in self.named.items() if callback.averages]

    def close_all(self, state: RunState) -> None:
        """Call `on_run_end` of each; an error is logged, because an earlier one ended the run."""
        for callback in self:
            try:
                callback.on_run_end(state)
            except Exception as error:
                log.warning("%s could not be closed: %s", type(callback).__name__, reason_of(error))

    def state_dict(self) -> StateDict:
        """Return the states of our callbacks by name; Lightning saves the states of its own."""
        return {name: callback.state_dict() for name, callback in self.named.items()}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the states that `state_dict` returned; a callback that is new to the run keeps its first state."""
        for name, callback in self.named.items():
            saved = state_dict.get(name)
            if saved:
                callback.load_state_dict(saved)
