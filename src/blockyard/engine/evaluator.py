"""Evaluation under the conditions of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Objective, Split
from blockyard.engine.faults.interrupts import Interrupts
from blockyard.engine.loader import Layout
from blockyard.evaluate.loop import evaluate


@dataclass(frozen=True)
class Evaluator:
    """Computes an objective's metrics over a split, on the device and in the precision of the run."""

    objective: Objective
    batch_size: int
    device: torch.device
    precision: str
    layout: Layout
    interrupts: Interrupts
    slices: tuple[str, ...] = ()

    def __call__(
        self,
        model: nn.Module,
        split: Split,
        limit: int | None,
        *,
        shared: bool = False,
        observe: Callable[[Tensor, Batch], None] | None = None,
    ) -> dict[str, float]:
        """Return every metric by name, without a prefix.

        limit: batches to look at, or None for all; shared: divide the work among the processes; all of them must call
        observe: called with each prediction of this process and its batch
        """
        alone = self.layout.world == 1 or not shared
        return evaluate(
            model,
            split,
            self.objective,
            batch_size=self.batch_size,
            device=self.device,
            precision=self.precision,
            limit=limit,
            rank=0 if alone else self.layout.rank,
            world=1 if alone else self.layout.world,
            # Of several processes one alone may not leave: the others would wait for it.
            halt=self.interrupts.check if alone else None,
            slices=self.slices,
            observe=observe,
        )
