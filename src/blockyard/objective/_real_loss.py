"""The loss of real-valued predictions, without targets that are NaN."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch

Kind: TypeAlias = Literal["mse", "mae", "huber"]


def real_loss(kind: Kind, delta: float, prediction: Tensor, target: Tensor) -> Tensor:
    """Mean error over the values that are there. prediction: (B, V); target: (B, ...) of V values, NaN without one."""
    target = target.flatten(1)
    counted = Batch.counted(target)
    error = prediction - target.masked_fill(~counted, 0.0)  # (B, V)
    if kind == "huber":
        values = F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=delta)
    else:
        values = error.square() if kind == "mse" else error.abs()
    return values.masked_fill(~counted, 0.0).sum() / counted.sum()
