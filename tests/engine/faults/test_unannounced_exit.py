"""A component that ends the process by `os._exit(0)`: nothing of ours runs then, and yet the run does not look done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from blockyard.engine.callbacks.loop import LoopCallback
from tests.battery.attempts import attempt, run_folder
from tests.battery.same_run import assert_same_run
from tests.support.tiny import TINY, configured, steps

FEW = (*TINY, *steps(6, 2), "callbacks.checkpoint.every=2")


def _leave_at_step_four() -> None:
    begins = LoopCallback.on_train_batch_start

    def left(self: LoopCallback, *arguments: Any) -> None:
        begins(self, *arguments)
        if self._batches == 4:
            os._exit(0)

    LoopCallback.on_train_batch_start = left  # type: ignore[method-assign]


@pytest.mark.full
def test_the_run_is_not_done_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = attempt(configured(*FEW, f"outputs={tmp_path / 'whole'}"))
    run = configured(*FEW, f"outputs={tmp_path / 'left'}")
    left = attempt(run, before=_leave_at_step_four)
    assert (whole.code, left.code, left.output) == (0, 0, "")  # nothing can change the exit code, nor say a word
    status = run_folder(tmp_path / "left").status
    assert status.state == "interrupted"
    assert "without reporting" in str(status.reason)
    resumed = attempt(run)
    assert resumed.code == 0, resumed.output
    assert_same_run(run_folder(tmp_path / "left"), run_folder(tmp_path / "whole"))
