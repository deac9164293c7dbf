"""A saved answer is marked as outdated when its sweep starts again; a changed sweep file gives a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockyard.atomic_files import write_json
from blockyard.report.comparison import compare
from blockyard.report.home import stale
from blockyard.report.page import write
from blockyard.sweep.plan import planner
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import NORMS, sweep

VALUES: dict[str, dict[int, float | str]] = {"post": {0: 0.90, 1: 0.91, 2: "failed"}, "pre": {0: 0.93, 1: 0.95, 2: 0.9}}


def _answered(outputs: Path) -> SweepPlan:
    plan = sweep(outputs, NORMS, VALUES)
    result = compare(plan).as_dict()
    write_json(plan.folder / stale.DATA, result)
    write(result, plan.folder / stale.PAGE)
    return plan


def test_an_older_answer_is_marked_once_and_the_new_one_is_not(tmp_path: Path) -> None:
    plan = _answered(tmp_path)
    assert json.loads((plan.folder / stale.DATA).read_text())["stale"] is None
    stale.mark(plan.folder)
    data = json.loads((plan.folder / stale.DATA).read_text())
    assert "with 5 of 6 cells done; the sweep was started again at" in data["stale"]
    assert "`blockyard compare norms` shows the current state" in data["stale"]
    page = (plan.folder / stale.PAGE).read_text()
    assert "Outdated: this is the state of" in page.partition("<noscript>")[2].partition("</noscript>")[0]
    stale.mark(plan.folder)
    assert json.loads((plan.folder / stale.DATA).read_text()) == data  # when it was marked first counts
    assert compare(plan).stale is None


def test_nothing_is_made_where_there_was_no_answer(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, VALUES)
    stale.mark(plan.folder)
    assert sorted(path.name for path in plan.folder.iterdir()) == ["plan.json"]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"cells": 3}'])
def test_a_page_without_its_data_is_put_aside(tmp_path: Path, content: str | None) -> None:
    plan = _answered(tmp_path)
    if content is None:
        (plan.folder / stale.DATA).unlink()
    else:
        (plan.folder / stale.DATA).write_text(content)
    stale.mark(plan.folder)
    assert not (plan.folder / stale.PAGE).exists()
    assert (plan.folder / "report-earlier.html").exists()


FILE = "claim: x\nbase: [experiment=vit_digits, logger=none]\narms: {a: [], b: [norm=rms]}\nseeds: 2\n"


def test_a_file_that_changed_since_its_plan_is_told(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"

    def warned(text: str | None, named: Path = path) -> list[str]:
        if text is None:
            named.unlink()
        else:
            named.write_text(text)
        return [line for line in compare(named, outputs=tmp_path / "out").warnings if "q.yaml" in line]

    path.write_text(FILE)
    sweep_plan = planner.make_plan(path, outputs=str(tmp_path / "out"), overrides=["model.depth=2"])
    sweep_plan.save()
    assert warned(FILE) == []
    assert warned(f"# another header\n{FILE.replace('claim: x', 'claim: y')}source: me\n") == []
    (warning,) = warned(FILE.replace("seeds: 2", "seeds: 3").replace("[norm=rms]", "[norm=layer]"))
    assert f"{path} has changed in arms, seeds since its plan was frozen" in warning
    assert f"`blockyard sweep {path}` runs what is new" in warning
    (warning,) = warned("claim: x\narms: [\n")
    assert "can no longer be read as a sweep file" in warning
    (tmp_path / "other").mkdir()
    (warning,) = warned(FILE.replace("seeds: 2", "seeds: 3"), tmp_path / "other" / "q.yaml")
    assert f"the results are those of {path}; {tmp_path / 'other' / 'q.yaml'} differs from it in seeds" in warning
