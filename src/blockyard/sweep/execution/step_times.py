"""The parts of a run's time, and from them the time of the whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blockyard.config.tree import Node
from blockyard.contracts import Splits

_BATCHES = 4  # of an evaluation, so that a cost independent of their number counts little in the time of one


@dataclass(frozen=True)
class MeasuredRun:
    """The parts of a run's time, in seconds.

    start: before the first step
    step: of one step
    evaluation: of a few batches (`measured_batches`)
    saving: of the state, after an evaluation
    total: steps of the whole run
    steps_per_epoch: of the whole run
    imports: of the modules, once for all runs of a sweep; 0 where an earlier measurement had imported them
    """

    start: float
    step: float
    evaluation: float
    saving: float
    total: int
    steps_per_epoch: int
    imports: float = 0.0

    def seconds(self, config: Node, splits: Splits) -> float:
        """Return the time of a whole run."""
        trainer = config["trainer"]
        batch_size = int(config["data"].get("eval_batch_size") or 1)
        num_evaluations = math.ceil(self.total / (trainer.get("eval_every") or self.steps_per_epoch))
        val_batches = math.ceil(len(splits.validation) / batch_size)
        test_batches = math.ceil(len(splits.test) / batch_size)
        # `evaluation` is the time of this many batches.
        batches_in_unit = max(1, min(measured_batches(trainer), val_batches))
        batches = num_evaluations * min(val_batches, trainer.get("limit_val") or math.inf)
        batches += min(test_batches, trainer.get("limit_test") or math.inf)
        evaluating = batches / batches_in_unit * self.evaluation
        return self.start + self.total * self.step + evaluating + num_evaluations * self.saving


def measured_batches(trainer: Node) -> int:
    """Return the number of batches in an evaluation that is measured."""
    return min(_BATCHES, trainer.get("limit_val") or _BATCHES)
