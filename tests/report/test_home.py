"""The home page of a folder: what it holds, and the command that writes it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import read_yaml, write_json
from blockyard.cli import main
from blockyard.report.comparison import compare
from blockyard.report.home.page import home, render_home
from blockyard.report.home.telling_apart import telling_apart
from blockyard.runs.index import records
from blockyard.runs.record import RunRecord
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.page_data import HOSTILE
from tests.report.report_runs import NORMS, run, sweep

VALUES = {"post": {0: 0.90, 1: 0.91, 2: 0.905}, "pre": {0: 0.93, 1: 0.95, 2: "failed"}}


@pytest.fixture
def plan(tmp_path: Path) -> SweepPlan:
    sweep_plan = sweep(tmp_path, NORMS, VALUES, question={"expect": "pre > post"})
    run(tmp_path, "position=none", figure=0.5)
    return sweep_plan


def content(root: Path) -> dict[str, Any]:
    return home(root, records(root))


def test_sweeps_have_claim_verdict_and_runs(plan: SweepPlan, tmp_path: Path) -> None:
    (row,) = content(tmp_path)["sweeps"]
    assert (row["name"], row["claim"], row["verdict"]) == ("norms", "Pre-norm is better", None)
    assert row["answer"] == "No comparison yet."
    assert row["page"] is None
    write_json(plan.folder / "comparison.json", compare(plan, changes=False).as_dict())
    (plan.folder / "report.html").write_text("")
    (row,) = content(tmp_path)["sweeps"]
    assert row["verdict"] == "undecided"
    assert "2 common seeds" in row["answer"]
    assert row["page"] == "sweeps/norms/report.html"
    assert sorted(row["runs"]) == sorted(cell.run for cell in plan.cells)
    for damage in ("{", "[]"):
        (plan.folder / "comparison.json").write_text(damage)
        assert "damaged" in content(tmp_path)["sweeps"][0]["answer"]
    (plan.folder / "plan.json").write_text("{")
    assert "damaged" in content(tmp_path)["sweeps"][0]["answer"]


def test_runs_have_the_options_in_which_any_two_differ(plan: SweepPlan, tmp_path: Path) -> None:
    data = content(tmp_path)
    assert len(data["runs"]) == 7
    assert set(data["families"]) == {"block", "position"}
    assert {"block._target_", "position._target_"} <= set(data["keys"])
    assert not {"seed", "outputs", "model.dim"} & set(data["keys"])  # of the replicate, of the machine, the same
    assert data["shared"]["model.dim"] == str(plan.config(plan.cells[0])["model"]["dim"])
    assert not {"seed", "outputs"} & set(data["shared"])
    assert not set(data["shared"]) & set(data["keys"])
    by_run = {each["run"]: each for each in data["runs"]}
    place = data["keys"].index("block._target_")
    for cell in plan.cells:
        row = by_run[cell.run]
        assert row["options"][place] == plan.config(cell)["block"]["_target_"]
        assert row["choices"]["block"] == plan.variants[cell.variant].choices["block"]
        value = VALUES[cell.variant][cell.seed]
        assert row["metrics"].get("test/accuracy") == (value if row["state"] == "done" else None)
        assert "config.yaml" in row["files"]
    assert data["metrics"][0] in ("val/loss", "val/accuracy", "test/loss", "test/accuracy")


def test_arms_of_one_option_are_told_apart_and_loggers_are_no_difference(tmp_path: Path) -> None:
    """Two arms that differ in `qk_norm` alone looked the same, beside four settings of their loggers."""
    arms = {"plain": ["token_mixer.qk_norm=false"], "qk": ["token_mixer.qk_norm=true"]}
    sweep(tmp_path, arms, {name: {0: 0.9, 1: 0.8} for name in arms})
    for path in tmp_path.glob("*/s*/config.yaml"):
        path.write_text(json.dumps(read_yaml(path) | {"logger": {"job_type": str(path)}}))
    data = content(tmp_path)
    assert data["apart"] == ["token_mixer.qk_norm"]
    assert not any(key.startswith("logger") for key in data["keys"])
    (row,) = data["sweeps"]
    assert dict(zip(row["runs"], row["arms"], strict=True)).keys() == {each["run"] for each in data["runs"]}
    assert set(row["arms"]) == {"plain", "qk"}
    assert data["ranges"]["test/accuracy"] == [0, 1]
    assert "test/loss" not in data["ranges"]


def test_what_all_configs_have_tells_them_apart_before_what_only_one_has() -> None:
    """A run that went on from another showed `init.which` of its own, and the other nothing."""
    init = {"which": "best", "parent": "x"}
    configs = [{"trainer": {"max_epochs": 1}}, {"init": init, "trainer": {"max_epochs": 2}}]
    every = [RunRecord(f"stable-{n}/s0", "done", config_json=json.dumps(one)) for n, one in enumerate(configs)]
    assert telling_apart(every, ["model"]) == ["trainer.max_epochs"]


def test_the_page_escapes_everything_and_names_no_path_of_the_machine(plan: SweepPlan, tmp_path: Path) -> None:
    page_data = content(tmp_path)
    page_data["title"] = HOSTILE[2]
    for row in page_data["runs"]:
        row |= {"note": HOSTILE[0], "reason": HOSTILE[2], "tags": list(HOSTILE)}
    text = render_home(page_data, tmp_path, tmp_path / "elsewhere")
    assert text.count("<script") == 2
    assert str(tmp_path) not in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["runs"][0]["note"] == HOSTILE[0]
    assert data["runs"][0]["link"] == f"../{data['runs'][0]['run']}"


def test_the_command_writes_it(plan: SweepPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--html", f"outputs={tmp_path}"]) == 0
    first = (tmp_path / "index.html").read_text()
    assert "encoder_digits" in first
    assert "index.html" in capsys.readouterr().err
    assert main(["runs", "state=failed", "--html", str(tmp_path / "failed.html"), f"outputs={tmp_path}"]) == 0
    data = json.loads(re.search(r'id="data">(.*?)</script>', (tmp_path / "failed.html").read_text(), re.S)[1])
    assert [each["state"] for each in data["runs"]] == ["failed"]
    assert main(["runs", "--html", f"outputs={tmp_path}"]) == 0
    assert (tmp_path / "index.html").read_text() == first
    for overrides, message in (
        (["--html", "--csv"], "one of --csv, --json and --html"),
        (["--html", "--best", "test/accuracy"], "the page sorts"),
        (["--html", "outputs=nowhere"], "no folder"),
    ):
        assert main(["runs", *overrides]) == 2
        assert message in capsys.readouterr().err
