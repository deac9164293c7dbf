"""The questions in sweeps/: each can be planned as before, and written as W&B sweep files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from blockyard.sweep.plan.wandb_file import files
from tests.golden.content import plan_content
from tests.golden.write import stored
from tests.support.paths import ROOT, SHARED
from tests.sweep.shipped_plans import NEED_FILES, NEED_RUNS, SWEEPS, plan_of_shipped

# Most of the time of planning all questions: the widths of every arm are solved at every rung, or there are many cells.
# The default suite plans ladders in test_ladder_key.py.
SLOW = ("ladder_field", "ladder_image", "ladder_rates", "recall_state")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in SWEEPS]
)
@pytest.mark.sampled(12)
def test_a_shipped_sweep_can_be_planned_and_written_for_wandb(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    plan = plan_of_shipped(name, tmp_path, SHARED if SHARED.is_dir() else None)
    if plan is None:
        pytest.skip("no shared data sets beside this checkout")
    if name not in NEED_FILES and name not in NEED_RUNS:  # their identities depend on the paths of this machine
        assert json.loads(json.dumps(plan_content(plan))) == stored(f"plans/{name}")
    assert plan.refused == ()
    assert plan.variants
    assert plan.question["header"].count("\n") >= 3
    for text in ("command", "cost", "expected"):
        assert text in plan.question["header"]
    written = files(plan)
    assert written
    for file, text in written.items():
        assert file.partition(".")[0] == name
        assert {"method", "parameters", "command"} <= yaml.safe_load(text).keys(), file
