"""One pass over a split without training: the only code that computes metrics.

Training calls it for validation, and at the end for the test; `blockyard eval` calls it too, so that both give the
same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Objective, Split
from blockyard.data.splits.order import eval_indices, eval_steps, take
from blockyard.evaluate.by_position import BySlice
from blockyard.ops.autocast import autocast


def samples_of_pass(split: Split, batch_size: int, limit: int | None) -> int:
    """How many samples `evaluate` looks at. limit: batches, or None for all."""
    steps = eval_steps(len(split), batch_size)
    return min(len(split), (min(steps, limit) if limit else steps) * batch_size)


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
    """Every metric of the objective over `split`, by name and without a prefix.

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
    metrics = {name: metric.to(device) for name, metric in objective.metrics(split).items()}
    by_slice = BySlice(objective, split, slices, device)
    for metric in (*metrics.values(), *by_slice.metrics):
        metric.sync_on_compute = world > 1
    steps = eval_steps(len(split), batch_size)
    training = model.training
    model.eval()
    context: AbstractContextManager[object] = autocast(device, precision)
    try:
        with torch.no_grad(), context:
            for step in range(min(steps, limit) if limit else steps):
                if halt is not None:
                    halt()
                order = eval_indices(step, num_samples=len(split), batch_size=batch_size, rank=rank, world=world)
                # No key: random numbers of a sample are the same at every evaluation, and in batches of any size.
                batch = objective.ready(take(split, order, None).to(device, non_blocking=True), None)
                prediction = model(batch)
                for metric in metrics.values():
                    metric.update(prediction, batch.target)
                by_slice.update(prediction, batch)
                if observe is not None:
                    observe(prediction, batch)
        return {name: float(metric.compute()) for name, metric in metrics.items()} | by_slice.compute()
    finally:
        model.train(training)
