"""What every run computes though it cannot have changed within a process: once for all runs of it.

Runs of tests lie in new folders and most are of the same digits. A fifth of the time of the shortest went into the
linear model beside it, and a tenth into asking Git for the state of this checkout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import blockyard
from blockyard.data.splits import simple_models
from blockyard.runs import provenance


def compute_once() -> None:
    """Remember both in this process and its forks; whoever plants a failure in one of them replaces it."""
    simple_models._logistic = _remembered_fit(simple_models._logistic)
    provenance.git_state = _remembered_state(provenance.git_state)


def _remembered_fit(fit: Callable[..., Callable[..., Tensor]]) -> Callable[..., Callable[..., Tensor]]:
    """A function of its samples and options alone."""
    models: dict[tuple[Any, ...], Callable[..., Tensor]] = {}

    def fitted(features: object, target: Tensor, classes: int, **options: float) -> Callable[..., Tensor]:
        if not isinstance(features, np.ndarray):  # words are sparse
            return fit(features, target, classes, **options)
        content = hashlib.sha256(np.ascontiguousarray(features))
        content.update(np.ascontiguousarray(target.numpy()))
        key = (content.digest(), features.shape, features.dtype, classes, *sorted(options.items()))
        if key not in models:
            models[key] = fit(features, target, classes, **options)
        return models[key]

    return fitted


def _remembered_state(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    package = Path(blockyard.__file__).parent
    states: list[Any] = []

    def state(folder: Path) -> Any:
        if folder != package:
            return read(folder)
        if not states:
            states.append(read(folder))
        return states[0]

    return state
