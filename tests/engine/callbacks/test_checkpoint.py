"""Which evaluation is the best one."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from blockyard.engine.callbacks.checkpoint import Checkpoint


def test_a_value_that_is_not_a_number_is_never_the_best() -> None:
    keep = Checkpoint()
    state: Any = SimpleNamespace(monitor=("loss", "min"), step=0, best={})
    for state.step, value in enumerate((math.nan, 2.0, 3.0, math.nan)):
        keep.on_evaluate(state, {"val/loss": value})
    assert (keep.best_value, keep.best_step) == (2.0, 1)
