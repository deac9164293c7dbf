"""Tuning: chosen on validation, the same settings for every arm, missing values taken for what they are."""

from __future__ import annotations

import math

import pytest

from blockyard.sweep.cells import Arm, Cell, Variant
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import tune
from tests.support.every import every


def plan(*, seeds: int = 3, first: int | None = 1, direction: str = "max", settings: int = 2) -> SweepPlan:
    """Two arms under some settings; run names tell everything."""
    variants = {f"{a}#{n}": Variant(f"{a}#{n}", a, {}, {}, {"lr": n}) for a in "ab" for n in range(settings)}
    return SweepPlan(
        name="x",
        question={"tune": {"lr": list(range(settings))}, "tune_seeds": first, "baseline": "a"},
        outputs="/nowhere",
        arms=(Arm("a"), Arm("b")),
        variants=variants,
        cells=tuple(Cell(key, seed, f"{key}/s{seed}") for key in variants for seed in range(seeds)),
        facts={"metric": {"name": "test/m", "validation": "val/m", "direction": direction}},
    )


def runs(cells: list[Cell]) -> list[str]:
    return [cell.run for cell in cells]


def test_phase_one_is_every_setting_on_the_first_seeds():
    assert runs(tune.cells_of_tuning(plan(), {})) == ["a#0/s0", "a#1/s0", "b#0/s0", "b#1/s0"]
    assert runs(tune.cells_of_tuning(plan(first=None), {})) == runs(list(plan().cells))


def test_phase_two_opens_arm_by_arm():
    values = {"a#0/s0": 0.1, "a#1/s0": 0.9, "b#0/s0": 0.5}
    assert tune.chosen_variants(plan(), values) == {"a": "a#1"}
    assert runs(tune.cells_of_tuning(plan(), values)) == ["a#0/s0", "a#1/s0", "a#1/s1", "a#1/s2", "b#0/s0", "b#1/s0"]
    assert tune.chosen_variants(plan(), values | {"b#1/s0": 0.4}) == {"a": "a#1", "b": "b#0"}


def test_the_direction_counts():
    values = {"a#0/s0": 0.1, "a#1/s0": 0.9, "b#0/s0": 0.5, "b#1/s0": 0.4}
    assert tune.chosen_variants(plan(direction="min"), values) == {"a": "a#0", "b": "b#1"}


def test_a_setting_is_chosen_by_the_direction_of_validation():
    """Fewer steps to an accuracy are better, and so is more accuracy."""
    steps_to = plan(direction="min")
    steps_to.facts["metric"]["validation_direction"] = "max"
    values = {"a#0/s0": 0.1, "a#1/s0": 0.9, "b#0/s0": 0.5, "b#1/s0": 0.4}
    assert tune.chosen_variants(steps_to, values) == {"a": "a#1", "b": "b#0"}


def test_what_comes_later_does_not_change_the_choice():
    """Values of the other seeds are for reporting; the choice was made."""
    values = {"a#0/s0": 0.1, "a#1/s0": 0.9, "b#0/s0": 0.5, "b#1/s0": 0.4, "a#1/s1": 0.0, "a#1/s2": 0.0, "a#0/s1": 1.0}
    assert tune.chosen_variants(plan(), values)["a"] == "a#1"


def test_the_mean_is_over_the_tuning_seeds():
    values = {"a#0/s0": 1.0, "a#0/s1": 0.0, "a#1/s0": 0.4, "a#1/s1": 0.8}
    assert tune.chosen_variants(plan(first=2), values) == {"a": "a#1"}


def test_ties_go_to_the_first():
    values = {f"a#{n}/s0": 0.5 for n in range(4)}
    assert tune.chosen_variants(plan(settings=4), values) == {"a": "a#0"}
    assert tune.chosen_variants(plan(settings=4, direction="min"), values) == {"a": "a#0"}


def test_metrics_may_come_whole():
    values = {"a#0/s0": {"val/m": 0.1, "test/m": 0.9}, "a#1/s0": {"val/m": 0.2, "test/m": 0.0}}
    assert tune.chosen_variants(plan(), values) == {"a": "a#1"}


@pytest.mark.parametrize("missing", [math.nan, math.inf, {"val/other": 1.0}, {"val/m": math.nan}])
def test_a_setting_without_a_number_is_not_chosen(missing):
    """A run that diverged has ended; it does not hold the others up, and does not win."""
    assert tune.chosen_variants(plan(), {"a#0/s0": missing, "a#1/s0": 0.1}) == {"a": "a#1"}


def test_a_failed_cell_is_waited_for_until_it_is_given_up():
    values = {"a#1/s0": 0.1}
    assert tune.chosen_variants(plan(), values) == {}
    assert tune.chosen_variants(plan(), values, ended=["a#0/s0"]) == {"a": "a#1"}
    assert "a#1/s1" in runs(tune.cells_of_tuning(plan(), values, ended=["a#0/s0"]))


def test_a_setting_with_a_seed_missing_is_not_compared():
    """Its mean would be over other seeds than the others'."""
    values = {"a#0/s0": 1.0, "a#1/s0": 0.1, "a#1/s1": 0.1}
    assert tune.chosen_variants(plan(first=2), values, ended=["a#0/s1"]) == {"a": "a#1"}


def test_an_arm_without_a_whole_setting_has_no_choice():
    ended = ["a#0/s0", "a#1/s0"]
    assert tune.chosen_variants(plan(), {}, ended=ended) == {}
    assert runs(tune.cells_of_tuning(plan(), {}, ended=ended)) == ["a#0/s0", "a#1/s0", "b#0/s0", "b#1/s0"]
    assert every(row.mean is None and row.settled for row in tune.setting_results(plan(), {}, ended) if row.arm == "a")


def test_the_table_has_every_setting():
    values = {"a#0/s0": 0.1, "a#1/s0": 0.9}
    rows = tune.setting_results(plan(), values)
    assert [(row.variant, row.mean, row.chosen) for row in rows] == [
        ("a#0", 0.1, False),
        ("a#1", 0.9, True),
        ("b#0", None, False),
        ("b#1", None, False),
    ]


def test_without_tuning_each_arm_is_its_own_choice():
    sweep_plan = plan(settings=1)
    sweep_plan.question["tune"] = {}
    assert tune.chosen_variants(sweep_plan, {}) == {"a": "a#0", "b": "b#0"}
    assert tune.cells_of_tuning(sweep_plan, {}) == list(sweep_plan.cells)
