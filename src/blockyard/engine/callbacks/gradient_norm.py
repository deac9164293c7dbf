"""Logs the norm of the gradients, before clipping, beside the training metrics.

Reference: torch.nn.utils.get_total_norm
"""

from __future__ import annotations

from typing import Any, ClassVar

from blockyard.engine.callbacks.base import RunCallback, RunState


class GradientNorm(RunCallback):
    """A column `train/grad_norm`: the norm of the last update's gradients, all parameters together."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})  # it only watches

    def __init__(self) -> None:
        pass

    def measure(self, live: RunState) -> dict[str, Any]:
        """The norm that the update's clipping and guard used; it is computed anyway."""
        norm = live.learner.norm
        return {} if norm is None else {"train/grad_norm": norm}
