"""Early stopping ends a run as done, also after a kill."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.engine.callbacks.early_stopping import EarlyStopping
from blockyard.engine.run import train
from tests.support.engine_runs import folder, run
from tests.support.fork import forked


def test_early_stopping_ends_a_run_as_done(tmp_path: Path) -> None:
    overrides = (
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=2",
        "callbacks.early_stopping.min_delta=9",
    )
    run_folder = run(tmp_path, *overrides)
    summary = json.loads((run_folder.path / "summary.json").read_text())
    assert summary["steps"] == 24
    assert summary["stopped"] == "val/accuracy did not improve in 2 evaluations"


@pytest.mark.parametrize("options", [{"monitor": "val/loss"}, {"mode": "min"}, {"monitor": "a", "mode": "low"}])
def test_early_stopping_wants_metric_and_mode_together(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"early_stopping\.mo"):
        EarlyStopping(**options)


def test_an_early_stop_survives_a_kill_before_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blockyard.engine import summary as module

    overrides = (
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=2",
        "callbacks.early_stopping.min_delta=9",
    )

    def struck() -> int:
        module.summarize = lambda job: os.kill(os.getpid(), signal.SIGKILL)
        return train(folder(tmp_path, *overrides))

    assert forked(struck) == -signal.SIGKILL
    run_folder = run(tmp_path, *overrides)
    summary = json.loads((run_folder.path / "summary.json").read_text())
    assert summary["steps"] == 24
    assert "did not improve" in summary["stopped"]


@pytest.mark.full
def test_an_evaluation_made_up_for_may_end_the_run(tmp_path: Path) -> None:
    from blockyard.engine import evaluator

    overrides = (
        "callbacks=early_stopping",
        "callbacks.early_stopping.patience=2",
        "callbacks.early_stopping.min_delta=9",
    )

    def struck() -> int:
        evaluate, calls = evaluator.evaluate, []

        def at_the_third(*arguments: Any, **settings: Any) -> dict[str, float]:
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return evaluate(*arguments, **settings)

        evaluator.evaluate = at_the_third
        return train(folder(tmp_path, *overrides))

    assert forked(struck) == 143
    assert json.loads((run(tmp_path, *overrides).path / "summary.json").read_text())["steps"] == 24


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_it_waits_anew_after_each_improvement(mode: str, sign: int) -> None:
    """By more than min_delta; a value that is not a number improves nothing."""
    stop = EarlyStopping(patience=2, min_delta=0.1, monitor="val/loss", mode=mode)
    state: Any = SimpleNamespace(monitor=("accuracy", "max"), stop=None)
    stopped = []
    for value in (5.0, 4.0, 3.95, 3.0, math.nan, 2.95):
        stop.on_evaluate(state, {"val/loss": sign * value, "val/accuracy": 0.0})
        stopped.append(state.stop is not None)
    assert stopped == [False] * 5 + [True]
