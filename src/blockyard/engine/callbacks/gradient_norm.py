"""Logs the norm of the gradients, before clipping, with the training metrics.

Reference: torch.nn.utils.get_total_norm
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.engine.callbacks.base import RunCallback, RunState


class GradientNorm(RunCallback):
    """Adds a column `train/grad_norm`: the norm of the last step's gradients, over all parameters."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only observes

    def __init__(self) -> None:
        pass

    def metrics(self, state: RunState) -> dict[str, Tensor]:
        """The norm that clipping and the guard used; it is computed anyway."""
        norm = state.learner.step.norm
        return {} if norm is None else {"train/grad_norm": norm}
