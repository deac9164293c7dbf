"""From the folders of a sweep to arms: missing cells, metrics, warnings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blockyard
from blockyard.errors import UserError
from blockyard.report.arms.answer import answer
from blockyard.report.comparison import compare, plain
from blockyard.report.load.run_record import read_run
from blockyard.runs.lock import RunLock
from blockyard.sweep.cells import Cell, Refused
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import ARMS, MEASURED, norms_sweep, run, runs_of_three_arms, sweep, warned


def test_a_sweep_is_compared_as_it_was_asked(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"expect": "pre > post and alibi ~ post", "source": "Xiong 2020"}))
    assert (result.title, result.claim, result.source) == ("norms", "Pre-norm is better", "Xiong 2020")
    assert (result.metric, result.direction, result.baseline) == ("test/accuracy", "max", "post")
    assert [arm.name for arm in result.arms] == ["post", "pre", "alibi"]
    assert [arm.verdict for arm in result.arms] == ["baseline", "better", "undecided"]
    assert result.arm("pre").values == {"0": 0.93, "1": 0.95, "2": 0.94, "3": 0.935}
    assert result.arm("pre").overrides == ["block=pre_norm"]
    assert result.expect is not None
    assert result.expect.verdict == "undecided"  # no margin says what is the same
    assert result.answer.startswith("Undecided")
    assert result.warnings == []
    assert result.seeds == [0, 1, 2, 3]
    assert len(result.cells) == len(result.curves) == 12
    with pytest.raises(KeyError):
        result.arm("nobody")


def test_the_same_sweep_by_plan_folder_name_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = norms_sweep(tmp_path / "outputs")
    wanted = compare(plan).as_dict()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "norms.yaml").write_text("claim: x\n")
    for argument in (plan.folder, plan.folder / "plan.json", "norms", "norms.yaml", ["norms"]):
        result = blockyard.compare(argument).as_dict()
        assert result["arms"] == wanted["arms"], argument
        assert result["cells"] == wanted["cells"]


def test_the_dictionary_is_json_with_null_for_what_is_no_number(tmp_path: Path) -> None:
    plan = norms_sweep(
        tmp_path, summaries={"pre": {"metrics": {"test/accuracy": math.nan, "val/loss": 1.0}, "seconds": math.inf}}
    )
    result = compare(plan).as_dict()
    json.dumps(result, allow_nan=False)
    assert result["arms"][1]["n"] == 0
    assert result["arms"][1]["mean"] is None
    assert result["arms"][1]["verdict"] == "no value"
    assert result["arms"][1]["cost"]["seconds"] is None
    assert any(
        "pre: 4 finished runs have no test/accuracy (not a finite number: test/accuracy)" in line
        for line in result["warnings"]
    )
    assert plain({1: (math.inf, Path("x"), True)}) == {"1": [None, "x", True]}


def test_every_state_of_a_cell_is_visible(tmp_path: Path) -> None:
    states: dict[int, float | str] = {0: 0.9, 1: "failed", 2: "interrupted", 3: "missing", 4: "queued"}
    refused = Refused("wide", {}, ("model.heads=3 does not divide model.dim=16",))
    arms = {**ARMS, "wide": ["model.heads=3"]}
    plan = sweep(tmp_path, arms, {**MEASURED, "pre": states}, refused=[refused])
    plan = SweepPlan(**{**plan.__dict__, "variants": {k: v for k, v in plan.variants.items() if k != "wide"}})
    result = compare(plan)
    seen = {(cell.arm, cell.seed): cell for cell in result.cells}
    assert {seed: seen["pre", seed].state for seed in states} == {
        0: "done",
        1: "failed",
        2: "interrupted",
        3: "missing",
        4: "queued",
    }
    assert seen["pre", 1].reason == "RuntimeError: out of memory"
    assert seen["pre", 3].run is None
    assert seen["wide", 0].state == "refused"
    assert warned(result, "pre: 1 of 5 cells failed (RuntimeError: out of memory), seed 1")
    assert warned(result, "pre: 1 of 5 cells missing, seed 3")
    assert warned(result, "wide was refused: model.heads=3 does not divide")
    assert result.arm("wide").n == 0
    assert "It was refused" in result.arm("wide").words
    assert result.arm("pre").n == 1
    assert result.arm("pre").verdict == "too few seeds"


def test_warnings_of_one_kind_are_one_line(tmp_path: Path) -> None:
    """Fifty arms had fifty lines, which stood above the table."""
    arms = {"post": ["block=post_norm"], **{f"a{n}": [f"optimizer.lr={n}e-4"] for n in range(1, 9)}}
    states: dict[int, float | str] = {0: 0.9, 1: "failed", 2: "missing"}
    plan = sweep(tmp_path, arms, dict.fromkeys(arms, states))
    first = "post s{0}, a1 s{0}, a2 s{0}, a3 s{0}, a4 s{0} and 4 more"
    lines = [line for line in compare(plan, changes=False).warnings if "cells" in line]
    assert lines == [
        f"9 of 27 cells of 9 arms failed (RuntimeError: out of memory): {first.format(1)}",
        f"9 of 27 cells of 9 arms missing: {first.format(2)}",
    ]
    for cell in plan.cells:
        if cell.seed == 0:
            (plan.path(cell) / "summary.json").unlink()
    (line,) = [line for line in compare(plan, changes=False).warnings if "finished runs" in line]
    assert line.startswith("9 finished runs of 9 arms have no test/accuracy (")
    assert line.endswith(f": {first.format(0)}")


def test_edited_configs_of_any_runs_are_one_line(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path)
    for path in tmp_path.glob("*/s*/config.yaml"):
        path.write_text(path.read_text().replace("dim: 16", "dim: 24"))
    (line,) = [line for line in compare([tmp_path], changes=False).warnings if "was edited" in line]
    assert line.startswith(f"{len(plan.arms)} configs (")
    assert line.count("identity") == len(plan.arms)


def test_a_running_cell_runs_only_while_somebody_holds_it(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path, values={**MEASURED, "pre": {0: 0.9, 1: "running"}})
    cell = next(cell for cell in plan.cells if cell.variant == "pre" and cell.seed == 1)
    assert read_run(plan.path(cell)).state == "interrupted"
    lock = RunLock(plan.path(cell)).acquire()
    try:
        assert [c.state for c in compare(plan).cells if c.arm == "pre"] == ["done", "running"]
    finally:
        lock.release()


def test_a_sweep_that_has_just_begun_has_no_figures_but_a_table(tmp_path: Path) -> None:
    nothing: dict[str, dict[int, float | str]] = {arm: {0: "missing", 1: "missing"} for arm in ARMS}
    result = compare(norms_sweep(tmp_path, values=nothing, question={"expect": "pre > post"}))
    assert [arm.n for arm in result.arms] == [0, 0, 0]
    assert result.metric == "test/accuracy"
    assert "pre is not done yet and post is not done yet" in result.answer
    assert "Not asked: alibi, which is not done yet." in result.answer
    json.dumps(result.as_dict(), allow_nan=False)


def test_an_expectation_that_cannot_be_judged_does_not_hide_the_figures(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"expect": "pre > nobody"}))
    assert result.expect is not None
    assert result.expect.verdict == "undecided"
    assert "unknown arm 'nobody'" in result.expect.reason
    assert result.arm("pre").verdict == "better"


def test_damaged_files_of_a_run_take_only_that_run(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path)
    first, second, third = (plan.path(cell) for cell in plan.cells if cell.variant == "pre" and cell.seed < 3)
    (first / "summary.json").write_text("{")
    (second / "summary.json").unlink()
    (third / "status.json").write_text("[]")
    (third / "metrics.csv").write_bytes(b"\xff\x00,")
    result = compare(plan)
    assert result.arm("pre").n == 1
    assert warned(
        result, "pre: 2 finished runs have no test/accuracy", "summary.json is damaged", "has no summary.json"
    )
    assert warned(result, "pre: 1 of 4 cells interrupted")


def test_odd_values_in_a_run_s_files_hide_no_figure(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path)
    path = plan.path(plan.cells[0])
    summary, facts = (json.loads((path / name).read_text()) for name in ("summary.json", "run.json"))
    summary |= {"peak_memory": 12345, "directions": ["x"], "device": ["cpu"], "precision": [32]}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "run.json").write_text(json.dumps(facts | {"versions": ["x"], "choices": ["x"], "git": "x"}))
    planned = compare(plan)
    assert planned.arm("pre").n == 4
    assert warned(planned, "the runs differ in device")
    assert len(compare([tmp_path]).arms) == len(planned.arms)


def test_runs_whose_config_is_damaged_are_left_out_aloud(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path)
    for cell in plan.cells:
        if cell.variant == "pre":
            (plan.path(cell) / "config.yaml").write_text("a: [b")
    result = compare([tmp_path])
    assert len(result.arms) == len(plan.arms) - 1
    assert warned(result, "skipped: 4 runs of ", "whose config is unreadable")
    for cell in plan.cells:
        (plan.path(cell) / "config.yaml").write_text("- 1")
    with pytest.raises(UserError, match="can be read"):
        compare([tmp_path])


def test_arms_that_share_a_run_are_an_error(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path)
    cells = [Cell("pre", c.seed, c.run) if c.variant == "post" else c for c in plan.cells if c.variant != "pre"]
    twin = SweepPlan(**{**plan.__dict__, "cells": (*plan.cells, *(c for c in cells if c.variant == "pre"))})
    with pytest.raises(UserError, match=r"arms post and pre are the same run"):
        compare(twin)


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    runs_of_three_arms(outputs)
    plan = norms_sweep(outputs)
    (tmp_path / "empty").mkdir()
    for argument, message in (
        ("norm", "no such path, run or sweep"),
        (str(tmp_path / "empty"), "contains no run"),
        (str(plan.folder / "missing.yaml"), "no such path"),
        ("x" * 5000, "no such path"),
        ("a\0b", "no such path"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            compare(argument, outputs=outputs)
        if message == "no such path, run or sweep":
            assert "norms" in str(caught.value)
    with pytest.raises(UserError, match="no run given"):
        compare([], outputs=outputs)
    with pytest.raises(UserError, match=r"no run has it; there are test/accuracy.*step_seconds"):
        compare(plan, metric="test/acuracy")
    with pytest.raises(UserError, match="baseline=nobody: no such arm; there are post, pre, alibi"):
        compare(plan, baseline="nobody")
    with pytest.raises(UserError, match="has not been run under"):
        compare(_touch(tmp_path / "other.yaml"), outputs=outputs)


def _touch(path: Path) -> Path:
    path.write_text("claim: x\n")
    return path


def test_a_metric_may_be_named_shortly_or_be_a_cost(tmp_path: Path) -> None:
    plan = norms_sweep(tmp_path, summaries={"pre": {"step_seconds": 0.01}})
    assert compare(plan, metric="loss").metric == "test/loss"
    assert compare(plan, metric="val/loss").direction == "min"
    speed = compare(plan, metric="step_seconds")
    assert speed.direction == "min"
    assert speed.arm("pre").mean == pytest.approx(0.01)


def test_directions_come_from_the_run_and_from_the_name_only_for_old_runs(tmp_path: Path) -> None:
    odd = {
        "metrics": {"test/score": 1.0, "test/loss": 1.0},
        "directions": {"test/score": "min"},
        "monitor": ["score", "min"],
    }
    result = compare(
        norms_sweep(tmp_path / "a", summaries=dict.fromkeys(ARMS, odd), question={"metric": None}),
        metric="test/score",
    )
    assert result.direction == "min"
    old = {"metrics": {"test/score": 1.0, "test/loss": 1.0}, "directions": None, "monitor": None}
    plan = norms_sweep(tmp_path / "b", summaries=dict.fromkeys(ARMS, old))
    assert compare(plan, metric="test/loss").direction == "min"
    with pytest.raises(
        UserError, match=r"unknown whether more or less of test/score is better; pass --direction max or min"
    ):
        compare(plan, metric="test/score")
    assert compare(plan, metric="test/score", direction="max").direction == "max"
    for seed in range(2):
        run(tmp_path / "c", seed=seed, summary={**old, "metrics": {"test/loss": 1.0, "test/perplexity": 2.0}})
    assert compare(tmp_path / "c").metric == "test/loss"


@pytest.mark.parametrize("baseline", [None, "only"])
def test_one_arm_has_nothing_to_be_compared_with(baseline: str | None) -> None:
    arms: list[Any] = [
        SimpleNamespace(name="only", n=1, verdict="baseline", difference=None, against=None, diverged=None)
    ]
    assert answer(arms, baseline, "test/loss", None) == "There is one arm only, only: nothing to compare it with."
