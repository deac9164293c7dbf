"""What a reviewer would say is said first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import late_curves
from blockyard.report.arms.review import contradicted_effects, still_improving
from blockyard.report.comparison import compare
from blockyard.report.load.document import CurveRow, EffectsRow, InteractionRow
from tests.report.report_runs import NORMS, grid, norms_sweep, sweep, warned


def curve(arm: str, values: list[float]) -> CurveRow:
    steps = [10 * (number + 1) for number in range(len(values))]
    metrics: dict[str, list[float | None]] = {"val/loss": [*values], "train/loss": [*values]}
    return CurveRow(arm=arm, seed=0, run="", setting={}, step=steps, samples=[], flops=[], seconds=[], metrics=metrics)


def test_curves_that_still_fall_are_named() -> None:
    flat = [2.0, 1.2, 1.05, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    falling = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1]
    rising = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    [line] = still_improving(
        [curve("flat", flat), curve("falling", falling), curve("rising", rising)], "test/loss", "min"
    )
    assert "falling (22 %)" in line  # 0.2 of 0.9
    assert "flat" not in line
    assert "rising" not in line
    [line] = still_improving([curve("falling", [-value for value in falling])], "test/loss", "max")
    assert "falling (22 %)" in line


@pytest.mark.parametrize("evaluations", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [6, 16, 200])
def test_a_straight_line_is_told_with_few_evaluations(rows: int, evaluations: int) -> None:
    """By the loss in training: 37 of the shipped sweeps evaluate fewer than five times, and were never warned of."""
    noise = 0.003 * np.random.default_rng(0).normal(size=(3, rows))
    runs = [
        late_curves.curve(seed, 2 - np.arange(1, rows + 1) / rows + row, evaluations) for seed, row in enumerate(noise)
    ]
    [line] = still_improving(runs, "test/loss", "min")
    assert line.startswith("train/loss (val/loss was evaluated fewer than 5 times) still improves at the end")
    [line] = still_improving(runs, "test/accuracy", "max")
    assert "(val/accuracy was evaluated fewer than 5 times)" in line


@pytest.mark.parametrize("shape", ["converged in the middle", "converged, exp(-10 share)", "never learns"])
@pytest.mark.parametrize(("rows", "seeds"), [(10, 5), (16, 1), (50, 5)])
def test_a_converged_noisy_curve_is_silent(shape: str, rows: int, seeds: int) -> None:
    assert late_curves.warned(shape, rows, noise=0.05, seeds=seeds, sweeps=40) <= 0.05


def test_a_loss_in_training_that_falls_by_overfitting_is_silent() -> None:
    """The run was better at its first evaluation than at its second."""
    run = late_curves.curve(0, 2 - np.arange(1, 17) / 16, evaluations=2)
    run.metrics["val/loss"] = [1.5 if index == 7 else 1.9 if index == 15 else None for index in range(16)]
    assert list(still_improving([run], "test/loss", "min")) == []
    assert any(still_improving([late_curves.curve(0, 2 - np.arange(1, 17) / 16, evaluations=2)], "test/loss", "min"))


def test_five_evaluations_speak_for_themselves() -> None:
    run = late_curves.curve(0, 2 - np.arange(1, 17) / 16, evaluations=5)
    run.metrics["val/loss"] = [1.0 if value is not None else None for value in run.metrics["val/loss"]]
    assert list(still_improving([run], "test/loss", "min")) == []


def test_rows_need_not_be_evenly_spaced() -> None:
    """The noise is that around lines between neighbours, whatever their distance."""
    run = late_curves.curve(0, np.zeros(16))
    steps = [50, 100, 120, 200, 210, 300, 310, 350, 400, 450, 470, 550, 600, 610, 700, 800]
    losses: list[float | None] = [2 - step / 800 for step in steps]
    uneven = replace(run, step=steps, metrics={**run.metrics, "train/loss": losses})
    assert any(still_improving([uneven], "test/loss", "min"))


def test_different_budgets_are_named(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, summaries={"pre": {"samples": 15360}}), changes=False)
    assert warned(result, "trained on different numbers of samples", "post 7,680", "pre 15,360")
    assert not warned(compare(norms_sweep(tmp_path / "same"), changes=False), "different numbers of samples")


def test_a_margin_below_one_sample_is_named(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path, question={"margin": 0.002})
    assert warned(compare(plan, changes=False), "the margin 0.002 is less than one of the 359 test samples")
    assert not warned(compare(plan, changes=False, margin=0.01), "less than one of the")


def test_a_margin_below_the_noise_of_the_test_set_is_told_with_the_verdict(tmp_path: Path) -> None:
    """0.01 of 359 digits, where two arms near 0.92 differ by 0.04 by the choice of the samples alone."""
    question = {"margin": 0.01, "expect": "pre > post"}
    result = compare(norms_sweep(tmp_path, question=question), changes=False)
    level = np.median([arm.mean for arm in result.arms])
    chance = 1.96 * np.sqrt(2 * level * (1 - level) / 359)
    assert warned(result, "the margin 0.01 is below the noise of the test set", "359 samples", f"up to {chance:.2g},")
    assert "This holds for these test samples: the margin is below the noise of their choice." in result.answer
    wide = compare(norms_sweep(tmp_path / "wide", question={**question, "margin": chance + 0.001}), changes=False)
    assert not warned(wide, "below the noise")
    assert "these test samples" not in wide.answer
    none = compare(norms_sweep(tmp_path / "none", question={"expect": "pre > post"}), changes=False)
    assert not warned(none, "below the noise")


def test_an_interaction_that_turns_a_main_effect_is_named(tmp_path: Path) -> None:
    factors = {"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]}
    arms, levels = grid(factors)
    means = {"pre_norm": {"0.001": 0.9, "0.01": 0.95}, "post_norm": {"0.001": 0.92, "0.01": 0.7}}
    values = {
        arm: {seed: means[own["block"]][own["optimizer.lr"]] + 0.002 * ((seed * 3 + len(arm)) % 5) for seed in range(5)}
        for arm, own in levels.items()
    }
    plan = sweep(tmp_path, arms, values, question={"kind": "grid"}, levels=levels)
    result = compare(plan, changes=False)
    assert warned(result, "the main effect of block hides an interaction", "post_norm against pre_norm")


def test_parallel_effects_hide_nothing() -> None:
    levels = [["x", "y"], ["s", "t"]]
    parallel = InteractionRow(
        factors=["a", "b"], F=9.0, p=0.001, holm_p=0.001, cells=[[1.0, 2.0], [1.5, 3.5]], levels=levels
    )
    crossed = replace(parallel, cells=[[1.0, 2.0], [1.5, 1.0]])

    def sentences(pair: InteractionRow) -> list[str]:
        return list(contradicted_effects(EffectsRow(main=[], interactions=[pair], formula="")))

    assert sentences(parallel) == []
    assert len(sentences(crossed)) == 2
    assert sentences(replace(crossed, holm_p=0.4)) == []


def test_the_curves_of_a_comparison_are_looked_at(tmp_path: Path) -> None:
    """Accuracy grows evenly to its end in the runs of these tests."""
    values: dict[str, Any] = {arm: dict.fromkeys(range(3), 0.9) for arm in NORMS}
    result = compare(sweep(tmp_path, NORMS, values, points=40), changes=False)
    assert warned(result, "val/accuracy still improves at the end", "post", "pre")
