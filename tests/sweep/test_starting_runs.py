"""A sweep whose arms start from a run: planned where the run is finished, refused where it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.spec.question import BadQuestionError, beside
from tests.support.engine_runs import run
from tests.support.tiny import SHORTEST


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
    except BadQuestionError as bad:
        pytest.fail(str(bad))
    (refused,) = plan.refused
    assert refused.arm == "tuned"
    assert "init.from: nowhere" in refused.reasons[0]


def test_a_run_is_found_by_its_name_under_the_sweeps_outputs_and_under_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLOCKYARD_PROJECT", "none")
    source = run(tmp_path / "outputs", base=SHORTEST)
    (tmp_path / "else where").mkdir()
    file = sweep(tmp_path, source.name.partition("/")[0])
    at_default = make_plan(file, outputs="else where", seeds=1)
    assert at_default.refused == ()
    (tmp_path / "outputs").rename(tmp_path / "else where" / "runs")
    below = make_plan(file, outputs="else where/runs", seeds=1)
    assert below.refused == ()
    hashes = {plan.variants["tuned"].config["init"]["sha256"] for plan in (at_default, below)}
    assert len(hashes) == 1


def test_a_path_that_is_not_in_the_working_folder_is_meant_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "my sweeps", tmp_path / "elsewhere"
    (folder / "data").mkdir(parents=True)
    elsewhere.mkdir()
    (folder / "data" / "a.csv").touch()
    monkeypatch.chdir(elsewhere)
    overrides = ("data.path=data/a.csv", "data.path=data/b.csv", "data.text=data/a.csv", "data.path=[data/a.csv]")
    there = f"data.path='{folder}/data/a.csv'"
    assert beside(overrides, folder / "x.yaml") == (there, *overrides[1:])
    assert beside(overrides, Path("../my sweeps/x.yaml"))[0] == there
    (elsewhere / "data").mkdir()
    (elsewhere / "data" / "a.csv").touch()  # as `blockyard train` reads it
    assert beside(overrides, folder / "x.yaml") == overrides
