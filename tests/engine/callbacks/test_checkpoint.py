"""Which evaluation is the best one."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.engine.callbacks.checkpoint import Checkpoint


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_equal_values_the_first_stays_the_best(mode: str) -> None:
    """Accuracies over few samples are often equal."""
    keep = Checkpoint()
    state: Any = SimpleNamespace(monitor=("accuracy", mode), step=0, best={})
    better = 0.2 if mode == "min" else 0.7
    for state.step, value in enumerate((0.5, 0.5, better, better, 0.5, better)):
        keep.on_evaluate(state, {"val/accuracy": value})
    assert (keep.best_value, keep.best_step) == (better, 2)


def test_a_value_that_is_not_a_number_is_never_the_best() -> None:
    keep = Checkpoint()
    state: Any = SimpleNamespace(monitor=("loss", "min"), step=0, best={})
    for state.step, value in enumerate((math.nan, 2.0, 3.0, math.nan)):
        keep.on_evaluate(state, {"val/loss": value})
    assert (keep.best_value, keep.best_step) == (2.0, 1)
