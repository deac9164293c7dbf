"""Losses that modules have of their own, beside that of the objective."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class HasAuxiliary(Protocol):
    """A module with a loss of its own beside the objective's, such as the commitment of a codebook.

    auxiliary: what its forward in training adds to the loss of the batch, a scalar; None where it adds nothing. It is
        logged as `train/auxiliary` and is no part of any other metric; its weight is an option of the module
    """

    auxiliary: Tensor | None


def auxiliary_loss(modules: Iterable[nn.Module]) -> Tensor | None:
    """Returns the sum of the modules' auxiliary losses, and forgets them; None where there are none."""
    total: Tensor | None = None
    for module in modules:
        if isinstance(module, HasAuxiliary) and module.auxiliary is not None:
            total = module.auxiliary if total is None else total + module.auxiliary
            module.auxiliary = None
    return total
