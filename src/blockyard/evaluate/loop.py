"""One pass over a split without training: the only code that computes metrics.

Training calls it for validation, and at the end for the test; `blockyard eval` calls it too, so that both give the
same values. `PassMetrics` is the part of it that a Lightning Trainer of the user's own calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Objective, Split
from blockyard.data.splits.order import EvalOrder, take
from blockyard.evaluate.by_position import BySlice
from blockyard.ops.autocast import autocast


def samples_of_pass(split: Split, batch_size: int, limit: int | None) -> int:
    """Return the number of samples that `evaluate` looks at. limit: batches, or None for all."""
    return EvalOrder(split, batch_size).samples(limit or None)


class PassMetrics:
    """The metrics of an objective over one pass, and the one that selects weights over the samples of each slice.

    slices: the names of the data's slices (`DataSpec.slices`)
    shared: whether several processes share the pass; all of them must then call `compute`, and all get the same result
    """

    def __init__(
        self, objective: Objective, split: Split | None, slices: Sequence[str], device: torch.device, *, shared: bool
    ) -> None:
        self._metrics = {name: metric.to(device) for name, metric in objective.metrics(split).items()}
        self._by_slice = BySlice(objective, split, slices, device)
        for metric in (*self._metrics.values(), *self._by_slice.metrics):
            metric.sync_on_compute = shared

    def update(self, prediction: Tensor, batch: Batch) -> None:
        """Count the predictions of a prepared batch."""
        for metric in self._metrics.values():
            metric.update(prediction, batch.target)
        self._by_slice.update(prediction, batch)

    def compute(self) -> dict[str, float]:
        """Return every metric by name, without a prefix; `accuracy@NAME` for each slice that has a sample."""
        return {name: float(metric.compute()) for name, metric in self._metrics.items()} | self._by_slice.compute()


def evaluate(
    model: nn.Module,
    split: Split,
    objective: Objective,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
    precision: str = "32",
    limit: int | None = None,
    rank: int = 0,
    world: int = 1,
    halt: Callable[[], None] | None = None,
    slices: Sequence[str] = (),
    observe: Callable[[Tensor, Batch], None] | None = None,
) -> dict[str, float]:
    """Return every metric of the objective over `split`, by name and without a prefix.

    The metric that selects weights is also computed over the samples of each slice: `accuracy@NAME`. A slice without
    a sample has none.

    model: forward(inputs, lengths, segment) -> prediction; left in the mode it was in
    limit: batches to look at, or None for all
    rank, world: this process and the number that share the work; all must call, all get the same result
    halt: called before each batch; raises to interrupt the evaluation
    slices: the names of the data's slices (`DataSpec.slices`)
    observe: called with each prediction and its prepared batch, of this process
    """
    device = torch.device(device)
    metrics = PassMetrics(objective, split, slices, device, shared=world > 1)
    order = EvalOrder(split, batch_size, rank, world)
    training = model.training
    model.eval()
    context: AbstractContextManager[object] = autocast(device, precision)
    try:
        with torch.no_grad(), context:
            for step in range(len(order))[: limit or None]:
                if halt is not None:
                    halt()
                # No key: random numbers of a sample are the same at every evaluation, and in batches of any size.
                batch = objective.ready(take(split, order(step), None).to(device, non_blocking=True), None)
                prediction = model(batch)
                metrics.update(prediction, batch)
                if observe is not None:
                    observe(prediction, batch)
        return metrics.compute()
    finally:
        model.train(training)
