"""A plan, its answer and its page have the remarks that `blockyard check` prints of each config."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blockyard.engine.data_reader import DataReader
from blockyard.report.comparison import compare
from blockyard.report.page import render
from blockyard.sweep.execution.tables import PlanStatus, print_plan
from blockyard.sweep.plan import planner
from blockyard.sweep.plan.sweep_plan import SweepPlan

FILE = """\
claim: x
base: [data=digit_series, tokenizer=series_patch, tokenizer.size=1, position=learned, model.depth=1, logger=none]
arms:
  kept: [tokenizer.normalise=none]
  instance: [tokenizer.normalise=instance]
  wide: [tokenizer.normalise=instance, model.dim=32]
"""
LOST = "tokenizer.normalise=instance takes its mean and standard deviation out of each series"


def planned(folder: Path, text: str = FILE) -> SweepPlan:
    (folder / "q.yaml").write_text(text)
    return planner.make_plan(folder / "q.yaml", outputs=str(folder / "out"), data=DataReader())


def test_a_remark_is_printed_once_with_its_arms_in_plan_answer_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(tmp_path)
    print_plan(PlanStatus.read(plan))
    printed = capsys.readouterr().out
    assert printed.count(LOST) == 1
    assert f"note: instance, wide: {LOST}" in printed
    comparison = compare(plan)
    assert [line for line in comparison.warnings if LOST in line] == plan.facts["remarks"]
    assert render(comparison.as_dict()).count(f"instance, wide: {LOST}") == 1


def test_a_remark_on_all_arms_names_none(tmp_path: Path) -> None:
    (remark,) = planned(tmp_path, FILE.replace("normalise=none", "normalise=instance, norm=rms")).facts["remarks"]
    assert remark.startswith(LOST)


def test_remarks_of_the_objective_on_the_data_are_planned(tmp_path: Path) -> None:
    """As well as remarks of the tokenizer, which need no data."""
    labels = np.array([0] * 400 + [1] * 10)
    np.savez(tmp_path / "rare.npz", X_train=np.random.default_rng(0).normal(size=(410, 12, 1)), y_train=labels)
    own = FILE.replace("data=digit_series", f"data=series_table, data.path={tmp_path / 'rare.npz'}")
    remarks = planned(tmp_path, own).facts["remarks"]
    assert any(remark.startswith("the training split is imbalanced") for remark in remarks)
