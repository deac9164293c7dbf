"""The rule that decides a sweep which has an earlier plan with results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockyard.sweep.plan.rule_in_force import with_rule_in_force
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import NORMS, sweep

VALUES: dict[str, dict[int, float | str]] = {"post": {0: 0.90, 1: 0.91}, "pre": {0: 0.93, 1: 0.95}}
NONE: dict[str, dict[int, float | str]] = {"post": {0: "missing"}, "pre": {0: "missing"}}
BOUNDARY = {"first": 3, "most": 20, "by": "boundary"}


def planned(outputs: Path, before: dict[str, Any] | None, values: dict[str, dict[int, float | str]]) -> SweepPlan:
    """The plan of a file that asks for a boundary, where the sweep was planned before with this `until`."""
    plan = sweep(outputs, NORMS, values, question={"until": before} if before else {})
    content = json.loads((plan.folder / "plan.json").read_text())
    content["question"]["until"] = BOUNDARY
    (plan.folder / "asked.json").write_text(json.dumps(content))
    return with_rule_in_force(SweepPlan.load(plan.folder, "asked.json"))


@pytest.mark.parametrize(
    ("before", "values", "rule", "remark"),
    [
        (BOUNDARY, VALUES, BOUNDARY, ""),
        ({**BOUNDARY, "most": 10}, NONE, BOUNDARY, ""),  # no result was known
        ({**BOUNDARY, "most": 10}, VALUES, {**BOUNDARY, "by": "e-values"}, "before the first result"),
        ({**BOUNDARY, "first": 5}, VALUES, {**BOUNDARY, "by": "e-values"}, "before the first result"),
        ({**BOUNDARY, "by": "e-values"}, VALUES, {**BOUNDARY, "by": "e-values"}, "before the first result"),
        (None, VALUES, {**BOUNDARY, "by": "e-values"}, "before the first result"),  # a fixed number of seeds
        ({"first": 3, "most": 20}, VALUES, {"first": 3, "most": 20}, "of an earlier release"),
        ({"first": 3, "most": 10}, VALUES, {**BOUNDARY, "by": "e-values"}, "before the first result"),
    ],
)
def test_a_boundary_needs_numbers_that_stand_before_the_first_result(
    before: dict[str, Any] | None, values: Any, rule: dict[str, Any], remark: str, tmp_path: Path
) -> None:
    plan = planned(tmp_path, before, values)
    assert plan.question["until"] == rule
    remarks = plan.facts.get("remarks", [])
    assert bool(remarks) == bool(remark)
    assert remark in " ".join(remarks)
