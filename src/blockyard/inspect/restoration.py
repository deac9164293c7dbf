"""What a model makes of samples with hidden patches, or with noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data._order import take
from blockyard.errors import UserError
from blockyard.inspect.options import Options
from blockyard.inspect.samples import validation_samples
from blockyard.objective._patches import floats, join
from blockyard.objective.restore import Restore, simple_predictions
from blockyard.runs.load import Loaded


@dataclass
class Restoration:
    """One sample, each an image (C, height, width) or a series (steps, C) in the units of the model's inputs.

    input: as the model reads it; output: visible values and predicted ones; true: all values
    hidden: which values the model could not read, bool
    mse: the metric of this sample alone; baselines: the same of predictions that need no training
    """

    index: int
    input: Tensor
    output: Tensor
    true: Tensor
    hidden: Tensor
    mse: float
    baselines: dict[str, float]


@torch.no_grad()
def restorations(loaded: Loaded, options: Options) -> list[Restoration]:
    """Returns the samples that `options` select. Raises UserError for a run of another objective."""
    task = loaded.objective
    if not isinstance(task, Restore):
        raise UserError(
            f"restore: {loaded.folder.name} was not trained to restore its input; use a run of objective=restore"
        )
    split, indices = validation_samples(loaded, options)
    return [_restoration(loaded, task, take(split, torch.tensor([index]), None), index) for index in indices]


def _restoration(loaded: Loaded, task: Restore, raw: Batch, index: int) -> Restoration:
    batch = task.ready(raw)
    assert isinstance(batch.target, Tensor)
    prediction, true = loaded.model(batch), floats(raw.inputs)
    hidden = torch.zeros_like(batch.target, dtype=torch.bool)
    if batch.hidden is not None:
        hidden = batch.hidden[..., None].expand_as(hidden)
    return Restoration(
        index,
        batch.inputs[0],
        task.restored(prediction, batch, raw.inputs)[0],
        true[0],
        join(hidden, torch.zeros_like(true, dtype=torch.bool), task.layout)[0],
        float(task.loss(prediction, batch.target)),
        {name: float(task.loss(simple, batch.target)) for name, simple in simple_predictions(batch, task)},
    )
