"""What all processes of a run have to agree on: to stop after the same step, for the same reason."""

from __future__ import annotations

import pytorch_lightning as pl
import torch

from blockyard.engine.callbacks.base import RunState
from blockyard.engine.system.interrupts import Interrupts

_EVERY = 16  # steps between two agreements of several GPUs on signals
_STOP, _PAUSE = 1, 2


class Agreement:
    """Asks the other processes; where there are none, the answer is this one's own.

    interrupted: whether a signal reached any of the processes, as all of them know
    """

    def __init__(self, state: RunState, interrupts: Interrupts) -> None:
        self.state = state
        self.interrupts = interrupts
        self.interrupted = False

    def on_signal(self, trainer: pl.Trainer) -> bool:
        """Whether a signal reached a process of the run; all record it, so that none takes the run for finished."""
        signum = self.interrupts.signum or 0
        if trainer.world_size > 1:
            # A signal may reach one process alone; all must stop after the same step. Asking stalls a GPU.
            every = 1 if trainer.strategy.root_device.type == "cpu" else _EVERY
            signum = 0 if self.state.step % every else _largest(trainer, signum)
        if signum:
            self.interrupts.request(signum)
            self.interrupted = True
        return self.interrupted

    def on_end(self, trainer: pl.Trainer) -> None:
        """Let all processes end or leave the run after this step where a callback of one of them does."""
        self.note_lightning_stop(trainer)
        if trainer.world_size == 1:
            return
        state = self.state
        end = _largest(trainer, _PAUSE if state.pause else _STOP if state.stop else 0)
        if end == _PAUSE:
            state.pause = state.pause or "another process paused the run"
        elif end == _STOP:
            state.stop = state.stop or "a callback of another process stopped it"

    def note_lightning_stop(self, trainer: pl.Trainer) -> None:
        """State a reason where Lightning ends the training before its last step."""
        if trainer.should_stop and not (self.interrupted or self.state.pause or self.state.finished):
            self.state.stop = "a Lightning callback stopped it"


def _largest(trainer: pl.Trainer, number: int) -> int:
    """The largest of a number over all processes."""
    own = torch.tensor(number, device=trainer.strategy.root_device)
    return int(trainer.strategy.reduce(own, reduce_op="max"))
