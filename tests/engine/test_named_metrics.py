"""Metrics by name in a run: columns, summary, a later evaluation, sweeps, and several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.runs.folder import RunFolder
from blockyard.sweep.plan.target_metric import validation_metric
from tests.engine.lightning.process_runs import trained
from tests.support.engine_runs import config, rows, run
from tests.support.every import every

NAMES = "objective.metrics=[F1Score,AUROC,CalibrationError]"
SHORT = ("trainer.max_steps=4", "trainer.eval_every=2")
COLUMNS = ("f1_score", "auroc", "calibration_error")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run(tmp_path_factory.mktemp("named"), NAMES, *SHORT)


def test_they_are_measured_on_validation_and_test(run_folder: RunFolder) -> None:
    summary = run_folder.summary()
    for name in COLUMNS:
        assert every(f"val/{name}" in row for row in rows(run_folder) if "val/loss" in row)
        assert f"test/{name}" in summary["metrics"]
    assert summary["directions"]["test/calibration_error"] == "min"


def test_a_finished_run_is_evaluated_with_others(run_folder: RunFolder, tmp_path: Path) -> None:
    plain = run(tmp_path, *SHORT)
    assert plain.identity != run_folder.identity
    later = evaluate(plain.path, metrics=["F1Score", "AUROC", "CalibrationError"])
    expected = {name: value for name, value in run_folder.summary()["metrics"].items() if name in later}
    assert later == pytest.approx(expected)
    assert set(later) > {f"test/{name}" for name in COLUMNS}
    with pytest.raises(UserError, match=r"did you mean F1Score"):
        evaluate(plain.path, metrics=["F1Scor"])


def test_a_sweep_may_ask_for_one(tmp_path: Path) -> None:
    plain, _ = config(tmp_path, NAMES)
    assert validation_metric("test/calibration_error", plain, []) == ("val/calibration_error", "min")


@pytest.mark.full
def test_two_processes_have_the_values_of_one(tmp_path: Path) -> None:
    overrides = (NAMES, "callbacks.ema._target_=blockyard.engine.callbacks.ema.EMA", "callbacks.ema.decay=0.5", *SHORT)
    both, one = trained(tmp_path / "two", "ddp", *overrides), trained(tmp_path / "one", "cpu", *overrides)
    for row, expected in zip(rows(both), rows(one), strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert {f"val/{name}@ema" for name in COLUMNS} <= rows(both)[-1].keys()
