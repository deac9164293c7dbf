"""Targets of a prepared batch: those of a model that reads the source, and of samples that do not count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts.batch import Batch, Target

if TYPE_CHECKING:
    pass


def source_as_input(batch: Batch) -> Batch:
    """Returns the batch of a model that reads the source alone: the source as inputs, the inputs as target.

    target: that of the data where it has one, or else the inputs, with what is padding ignored
    """
    if batch.source is None:
        raise ValueError("the model reads the source, and the batch has none")
    target = batch.target
    if target is None:
        target = batch.inputs
        if batch.lengths is not None:
            padding = torch.arange(target.shape[1], device=target.device) >= batch.lengths[:, None]  # (B, N)
            target = target.masked_fill(
                padding.reshape(*padding.shape, *[1] * (target.ndim - 2)),
                float("nan") if target.is_floating_point() else Batch.ignore,
            )
    return replace(
        batch, inputs=batch.source, lengths=batch.source_lengths, target=target, source=None, source_lengths=None
    )


def ignored(target: Target, dummy: Tensor) -> Target:
    """Returns the target with the first tensor's samples `dummy` (B,) ignored; other tensors stay as they are."""
    if not isinstance(target, Tensor):
        return target._replace(**{target._fields[0]: ignored(target[0], dummy)})
    if not target.is_floating_point() and target.dtype not in (torch.int16, torch.int32, torch.int64):
        raise ValueError(f"targets of dtype {target.dtype} have no value for a sample that does not count; use int64")
    value = float("nan") if target.is_floating_point() else Batch.ignore
    return target.masked_fill(dummy.reshape(-1, *[1] * (target.ndim - 1)), value)
