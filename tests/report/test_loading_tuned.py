"""From the folders of a sweep with settings to choose to arms."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.report.comparison import compare
from blockyard.report.load.document import BudgetRow
from blockyard.sweep.cells import Cell, Variant
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import ARMS, config, norms_sweep, warned, write


def _tuned(outputs: Path, tune_seeds: int | None = None, fails: tuple[str, int] | None = None) -> SweepPlan:
    """Two arms, three rates, three seeds. On validation 0.01 is best for post, 0.1 for pre; on test 0.002 is."""
    plan = norms_sweep(outputs)
    best = {"post": "0.01", "pre": "0.1"}
    variants, cells = {}, []
    for arm in ("post", "pre"):
        for number, rate in enumerate(("0.002", "0.01", "0.1")):
            resolved, choices = config(*ARMS[arm], f"optimizer.lr={rate}")
            key = f"{arm}#{number}"
            variants[key] = Variant(key, arm, resolved, choices, {"optimizer.lr": float(rate)})
            for seed in range(3):
                test = 0.99 if rate == "0.002" else 0.8 + 0.01 * seed + 0.02 * number
                metrics = {"val/accuracy": 0.9 if rate == best[arm] else 0.7, "test/accuracy": test, "test/loss": 1.0}
                figure: float | str = "failed" if fails == (key, seed) else test
                if tune_seeds and seed >= tune_seeds and rate != best[arm]:
                    figure = "missing"
                path = write(outputs, resolved, choices, seed, figure, {"metrics": metrics})
                cells.append(Cell(key, seed, f"{path.parent.name}/{path.name}"))
    question = {**plan.question, "tune": {"optimizer.lr": [0.002, 0.01, 0.1]}, "tune_seeds": tune_seeds}
    arms = tuple(arm for arm in plan.arms if arm.name != "alibi")
    return SweepPlan(
        **{**plan.__dict__, "arms": arms, "variants": variants, "cells": tuple(cells), "question": question}
    )


def test_settings_are_chosen_on_validation_and_reported_on_test(tmp_path: Path) -> None:
    result = compare(_tuned(tmp_path))
    assert result.arm("post").budget == BudgetRow(settings=3, chosen={"optimizer.lr": 0.01})
    assert result.arm("pre").budget == BudgetRow(settings=3, chosen={"optimizer.lr": 0.1})
    assert result.arm("post").mean == pytest.approx(0.83)
    assert result.arm("pre").mean == pytest.approx(0.85)
    assert len(result.tuning) == 6
    assert [row.setting for row in result.tuning if row.chosen] == [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.1}]
    assert len(result.cells) == 18
    end = "optimizer.lr: the largest of 0.002, 0.01, 0.1 was best for pre (0.1); a wider range may hold a better one"
    assert result.warnings == [end]
    other = compare(_tuned(tmp_path), metric="test/loss")
    assert other.arm("post").budget.chosen == {"optimizer.lr": 0.01}, "the metric shown must not choose"


def test_the_mean_of_the_last_evaluations_chooses_where_the_file_says_so(tmp_path: Path) -> None:
    """The tables of the runs have the highest values at 0.002, where the summary of another is best on validation."""
    plan = _tuned(tmp_path)
    plan.facts["metric"]["validation"] = "val/accuracy@last2"
    result = compare(plan, changes=False)
    assert [row.setting for row in result.tuning if row.chosen] == [{"optimizer.lr": 0.002}] * 2
    assert result.tuned_by == "val/accuracy@last2"
    assert result.arm("post").mean == pytest.approx(0.99)  # of test/accuracy, as before


def test_settings_that_were_given_up_after_the_tuning_seeds_are_not_missing(tmp_path: Path) -> None:
    result = compare(_tuned(tmp_path, tune_seeds=1))
    assert [arm.n for arm in result.arms] == [3, 3]
    assert len(result.warnings) == 1  # of the end of the range
    assert len(result.cells) == 2 * (1 + 1 + 3)


def test_unequal_budgets_are_said(tmp_path: Path) -> None:
    plan = _tuned(tmp_path)
    lost = [cell for cell in plan.cells if cell.variant != "pre#0"]
    fewer = SweepPlan(**{**plan.__dict__, "cells": tuple(lost)})
    assert warned(compare(fewer), "different tuning budgets; settings tried: post 3, pre 2")


def test_a_setting_with_a_failed_seed_is_not_chosen(tmp_path: Path) -> None:
    result = compare(_tuned(tmp_path, fails=("pre#2", 1)))
    assert result.arm("pre").budget == BudgetRow(settings=3, chosen={"optimizer.lr": 0.002})
    assert [cell.state for cell in result.cells].count("failed") == 1
