"""A sweep whose arms start from a run: planned where the run is finished, refused where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.spec.question import BadQuestion
from tests.engine_runs import run
from tests.tiny import SHORTEST


def sweep(folder: Path, start: str) -> Path:
    """A file with an arm from scratch and one that starts from a run."""
    arms = {"scratch": [], "tuned": [f"init.from={start}"]}
    path = folder / "pretraining.yaml"
    path.write_text(yaml.safe_dump({"claim": "x", "base": list(SHORTEST), "baseline": "scratch", "arms": arms}))
    return path


def test_an_arm_starts_from_a_finished_run(tmp_path: Path) -> None:
    source = run(tmp_path, base=SHORTEST)
    plan = make_plan(sweep(tmp_path, str(source.path)), outputs=str(tmp_path), seeds=2)
    scratch, tuned = (plan.variants[arm].config for arm in ("scratch", "tuned"))
    assert "init" not in scratch
    assert tuned["init"]["from"] == str(source.path)
    assert len(tuned["init"]["sha256"]) == 64
    assert len({cell.run for cell in plan.cells}) == 4


def test_an_arm_whose_run_is_not_there_is_refused_with_the_reason(tmp_path: Path) -> None:
    try:
        plan = make_plan(sweep(tmp_path, "nowhere"), outputs=str(tmp_path), seeds=1)
    except BadQuestion as bad:
        pytest.fail(str(bad))
    (refused,) = plan.refused
    assert refused.arm == "tuned"
    assert "init.from: nowhere" in refused.reasons[0]
