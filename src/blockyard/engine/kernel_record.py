"""Records the attention kernels that will run, and refuses slow ones if the trainer requires flash."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from blockyard.contracts import Objective, Split
from blockyard.engine import cost_card
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.errors import UserError
from blockyard.ops.autocast import autocast
from blockyard.ops.kernel import Record, selected


class KernelRecord(RunCallback):
    """Looks at the model once it is on its device. Part of every run, and of no config."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})
    priority = -1  # before all that may be shown or opened

    def __init__(
        self, objective: Objective, split: Split, precision: str, *, require_flash: bool, ring: bool = False
    ) -> None:
        self.objective = objective
        self.split = split
        self.precision = precision
        self.require_flash, self.ring = require_flash, ring
        self.kernels: list[Record] | None = None

    def on_run_start(self, state: RunState) -> None:
        """Record the kernels.

        Raises UserError where `require_flash` is set and a layer takes a slow one, and where a kernel was chosen by
        name and no layer attends.
        """
        state.learner.train()
        self.kernels = self.look(state.learner.model, state.learner.device)
        if selected() != "auto" and all(entry["kernel"] == "none" for entry in self.kernels):
            raise UserError(
                f"trainer.attention={selected()} has no effect: no token mixer of this model attends; use "
                "trainer.attention=auto"
            )
        slow = cost_card.slow_layers(self.kernels)
        if self.require_flash and slow:
            raise UserError(
                "trainer.require_flash=true, but " + "; ".join(slow) + "; choose what flash attention supports, "
                "or trainer.require_flash=false"
            )

    def look(self, model: nn.Module, device: torch.device) -> list[Record]:
        """Return the attention kernel of a training step of `model`, layer by layer."""
        model.train()  # dropout on attention weights decides which kernels can serve
        with autocast(device, self.precision):
            kernels = cost_card.kernels(model, self.objective, self.split, device)
        if self.ring:  # one process alone cannot run a step of it
            kernels = [{**entry, "kernel": "ring", "reason": "trainer.strategy=context"} for entry in kernels]
        return kernels
