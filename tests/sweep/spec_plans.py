"""Plans made from the text of a sweep file."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.sweep.plan import planner
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.question import BadQuestionError


def plan_from(tmp_path: Path, text: str, *overrides: str, name: str = "x") -> SweepPlan:
    """The plan of a sweep file with this text."""
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return planner.make_plan(path, outputs=str(tmp_path / "out"), overrides=overrides, command=["test"])


def refusals(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    """Every reason for which the planner refuses a sweep file with this text."""
    with pytest.raises(BadQuestionError) as caught:
        plan_from(tmp_path, text, *overrides)
    return caught.value.problems
