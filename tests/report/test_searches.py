"""Trials of a search count as one arm, the best trial; a sweep regrouped by a key keeps what still applies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_json, write_json
from blockyard.report.comparison import compare
from tests.report.report_runs import grid, run, sweep

RATES = ("0.001", "0.002", "0.004")


def _searched(outputs: Path) -> dict[str, Path]:
    """A search over three rates, the best on the first seed run on two more; and a run of somebody's own."""
    storage = f"sqlite:///{outputs / 'sweeps' / 'hunt' / 'search.db'}"
    sweep(outputs, {"pre": ["block=pre_norm"]}, {"pre": {}}, name="hunt")
    folders = {}
    for number, (rate, figure) in enumerate(zip(RATES, (0.8, 0.9, 0.7), strict=True)):
        facts = {"trial": {"storage": storage, "study": "pre", "number": number}}
        folders[rate] = run(outputs, "block=pre_norm", f"optimizer.lr={rate}", figure=figure, facts=facts)
    for seed in (1, 2):
        run(outputs, "block=pre_norm", "optimizer.lr=0.002", seed=seed, figure=0.91)
    for seed in range(3):
        folders["own"] = run(outputs, "block=post_norm", "optimizer.lr=0.05", seed=seed, figure=0.8 + 0.01 * seed)
    return folders


def test_a_search_is_one_arm_among_the_runs_of_a_folder(tmp_path: Path) -> None:
    folders = _searched(tmp_path)
    result = compare(tmp_path)
    assert [arm.n for arm in result.arms] == [3, 3]
    assert not any("0.001" in arm.name or "0.004" in arm.name for arm in result.arms)
    (warning,) = [line for line in result.warnings if "trials" in line]
    assert "3 runs are trials of the search hunt, arm pre; only the best on val/accuracy is kept" in warning
    assert f"{folders['0.002'].parent.name}/s0" in warning
    assert "`blockyard compare hunt` shows all" in warning


def test_the_best_trial_is_the_best_on_validation_whatever_is_compared(tmp_path: Path) -> None:
    """Fewer steps until an accuracy are better, and so the trial with the lowest accuracy was kept."""
    folders = _searched(tmp_path)
    path = tmp_path / "sweeps" / "hunt" / "plan.json"
    plan = read_json(path)
    plan["facts"]["metric"] = {
        "name": "steps_to(val/accuracy >= 0.9)", "direction": "min", "validation": "val/accuracy",
        "validation_direction": "max",
    }  # fmt: skip
    write_json(path, plan)
    result = compare(tmp_path, metric="test/accuracy")
    (warning,) = [line for line in result.warnings if "trials" in line]
    assert f"{folders['0.002'].parent.name}/s0" in warning


def test_trials_that_are_named_are_compared(tmp_path: Path) -> None:
    folders = _searched(tmp_path)
    result = compare([folders["0.001"], folders["0.004"]])
    assert len(result.arms) == 2
    result = compare([tmp_path, folders["0.004"]])
    assert any("0.004" in arm.name for arm in result.arms)
    assert not any("0.001" in arm.name for arm in result.arms)


def test_a_setting_that_somebody_ran_on_more_seeds_stays(tmp_path: Path) -> None:
    _searched(tmp_path)
    run(tmp_path, "block=pre_norm", "optimizer.lr=0.004", seed=1, figure=0.7)
    assert len(compare(tmp_path).arms) == 3


def test_a_search_of_which_no_trial_ended_hides_nothing_else(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'gone' / 'search.db'}"
    for number, rate in enumerate(RATES):
        facts = {"trial": {"storage": storage, "study": "pre", "number": number}}
        run(tmp_path, f"optimizer.lr={rate}", figure="failed", facts=facts)
    run(tmp_path, "block=post_norm", figure=0.8)
    result = compare(tmp_path)
    assert len(result.arms) == 1
    assert any("none of them finished" in line for line in result.warnings)


# -- a sweep by the values of a key -----------------------------------------------------------------


def _grid(outputs: Path, **question: Any) -> Any:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]})
    values = {arm: {s: 0.8 + 0.01 * s + 0.1 * ("pre" in arm) for s in range(3)} for arm in arms}
    return sweep(outputs, arms, values, levels=levels, question=question)


def test_by_a_key_a_sweeps_metric_direction_and_claim_still_hold(tmp_path: Path) -> None:
    first = next(iter(grid({"block": ["pre_norm"], "optimizer.lr": ["0.001"]})[0]))
    plan = _grid(tmp_path, metric="val/loss", margin=0.5, expect=f"{first} ~ {first}", source="somebody")
    plan.facts["metric"] = {"name": "val/loss", "validation": "val/loss", "direction": "min"}
    result = compare(plan, by="block", baseline="block=post_norm")
    assert (result.metric, result.direction, result.margin) == ("val/loss", "min", 0.5)
    assert (result.claim, result.source) == ("Pre-norm is better", "somebody")
    assert result.expect is None
    (warning,) = [line for line in result.warnings if "refer to its own arms" in line]
    assert f"expect ({first} ~ {first})" in warning
    assert f"baseline ({first})" in warning


def test_another_metric_than_the_sweeps_has_no_margin_of_its(tmp_path: Path) -> None:
    assert compare(_grid(tmp_path, margin=0.5), metric="test/loss").margin is None
    assert compare(_grid(tmp_path, margin=0.5)).margin == 0.5
    assert compare(_grid(tmp_path, margin=0.5), margin=0.1).margin == 0.1


@pytest.mark.parametrize(("margin", "verdict"), [(None, "undecided"), (0.02, "supported"), (0.001, "undecided")])
def test_a_sweep_says_what_counts_as_the_same(tmp_path: Path, margin: float | None, verdict: str) -> None:
    arms = {"post": ["block=post_norm"], "pre": ["block=pre_norm"]}
    values: dict[str, dict[int, float | str]] = {
        "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
        "pre": {0: 0.902, 1: 0.925, 2: 0.91, 3: 0.89},
    }
    result = compare(sweep(tmp_path, arms, values, question={"expect": "pre ~ post", "margin": margin}))
    assert result.expect is not None
    assert result.expect.verdict == verdict
    assert ("1% of the mean of" in result.expect.reason) == (margin is None)
    assert result.margin == margin
