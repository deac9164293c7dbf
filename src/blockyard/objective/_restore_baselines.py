"""Predictions of hidden values that need no training, and their errors over a split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import Batch, Split
from blockyard.objective._patches import cut, floats
from blockyard.objective._simple import BATCH, over_split

if TYPE_CHECKING:
    from blockyard.objective.restore import Restore


def simple_predictions(batch: Batch, objective: Restore) -> Iterator[tuple[str, Tensor]]:
    """Names and predictions (B, N, V) of the rules that read nothing but a prepared batch."""
    assert isinstance(batch.target, Tensor)
    yield "mean", torch.zeros_like(batch.target)
    if objective.normalise == "patch":
        return  # the mean of each hidden patch is taken out of its target
    visible = cut(batch.inputs, objective.layout)  # (B, N, V)
    if batch.hidden is None:
        yield "input", visible
        return
    visible = visible.masked_fill(batch.hidden[..., None], float("nan"))
    yield "visible", visible.nanmean((1, 2), keepdim=True).nan_to_num().expand_as(batch.target)


def baselines(split: Split, objective: Restore) -> dict[str, dict[str, float]]:
    """The objective's metrics of every rule over `split`, with the patches and the noise of its evaluation."""
    average = _average(split, objective) if objective.normalise == "none" else None

    def rules(batch: Batch) -> Iterator[tuple[str, Tensor]]:
        yield from simple_predictions(batch, objective)
        if average is not None:
            yield "average", average.expand(len(batch), -1, -1)

    return over_split(split, objective, rules)


def _average(split: Split, objective: Restore) -> Tensor:
    """The mean of every value (N, V) over the samples of a split in which it is not missing."""
    total, count = torch.zeros(()), torch.zeros(())
    for order in torch.arange(len(split)).split(BATCH):
        values = cut(floats(split.batch(order, None).inputs), objective.layout).double()  # (B, N, V)
        total, count = total + values.nansum(0), count + (~values.isnan()).sum(0)
    return (total / count.clamp_min(1)).float()
