"""Histograms of gradients for the loggers that show them, at the steps whose metrics are logged.

Reference: `wandb.watch(model, log="gradients")`, which counts in hooks of the backward pass. Here the gradients are
read after the step: no hook runs in it, and a step that is not logged costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np

from blockyard.engine.callbacks.base import RunCallback, RunState

BINS = 64
Histograms: TypeAlias = dict[str, tuple[np.ndarray, np.ndarray]]  # parameter -> counts (BINS,), edges (BINS + 1,)


class GradientHistograms(RunCallback):
    """Counts the gradients of each parameter, as the optimizer got them: summed over micro-batches and clipped."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})

    def __init__(self, send: Callable[[int, Histograms], None]) -> None:
        self.send = send

    def on_log(self, state: RunState, values: dict[str, float]) -> None:
        """Count those of the last step."""
        histograms: Histograms = {}
        for name, parameter in state.learner.model.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad.detach().float().cpu().numpy().ravel()
                histograms[name] = np.histogram(gradient[np.isfinite(gradient)], bins=BINS)
        self.send(state.step, histograms)
