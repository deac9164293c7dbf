"""What all processes of a run have to agree on: to stop after the same step, for the same reason.

Where there is one process, the answer is its own.
"""

from __future__ import annotations

import pytorch_lightning as pl
import torch

from blockyard.engine.faults.interrupts import Interrupts

_EVERY = 16  # steps between two agreements of several GPUs on signals
_STOP, _PAUSE = 1, 2


def agree_on_signal(trainer: pl.Trainer, interrupts: Interrupts, step: int) -> bool:
    """Return whether a signal reached a process of the run; all record it, so that none takes the run for finished."""
    signum = interrupts.signum or 0
    if trainer.world_size > 1:
        # A signal may reach one process alone; all must stop after the same step. Asking stalls a GPU.
        every = 1 if trainer.strategy.root_device.type == "cpu" else _EVERY
        signum = 0 if step % every else _largest(trainer, signum)
    if signum:
        interrupts.request(signum)
    return bool(signum)


def agree_on_end(trainer: pl.Trainer, stop: str | None, pause: str | None) -> tuple[str | None, str | None]:
    """Return why the run ends (stop) or is left (pause) after this step, from what callbacks of all processes asked."""
    if trainer.world_size == 1:
        return stop, pause
    end = _largest(trainer, _PAUSE if pause else _STOP if stop else 0)
    if end == _PAUSE:
        pause = pause or "another process paused the run"
    elif end == _STOP:
        stop = stop or "a callback of another process stopped it"
    return stop, pause


def _largest(trainer: pl.Trainer, number: int) -> int:
    """Return the largest of a number over all processes."""
    own = torch.tensor(number, device=trainer.strategy.root_device)
    return int(trainer.strategy.reduce(own, reduce_op="max"))
