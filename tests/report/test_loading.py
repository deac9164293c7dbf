"""From folders to arms: sweeps, any runs, missing cells, warnings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import blockyard
from blockyard.errors import UserError
from blockyard.report.answer import answer
from blockyard.report.comparison import compare
from blockyard.report.comparison_result import Comparison, plain
from blockyard.report.load.run_record import read_run
from blockyard.runs.lock import RunLock
from blockyard.sweep.plan.sweep_plan import Cell, Refused, SweepPlan, Variant
from tests.report.report_runs import ARMS, config, grid, run, sweep, write

VALUES: dict[str, dict[int, float | str]] = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: 0.935},
    "alibi": {0: 0.9, 1: 0.91, 2: 0.92, 3: 0.9},
}


def _sweep(outputs: Path, **more: Any) -> SweepPlan:
    return sweep(outputs, ARMS, more.pop("values", VALUES), **more)


def _warned(result: Comparison, *words: str) -> bool:
    return any(all(word in line for word in words) for line in result.warnings)


# -- sweeps --------------------------------------------------------------------------------------------


def test_a_sweep_is_compared_as_it_was_asked(tmp_path: Path) -> None:
    result = compare(_sweep(tmp_path, question={"expect": "pre > post and alibi ~ post", "source": "Xiong 2020"}))
    assert (result.title, result.claim, result.source) == ("norms", "Pre-norm is better", "Xiong 2020")
    assert (result.metric, result.direction, result.baseline) == ("test/accuracy", "max", "post")
    assert [arm["name"] for arm in result.arms] == ["post", "pre", "alibi"]
    assert [arm["verdict"] for arm in result.arms] == ["baseline", "better", "no difference shown"]
    assert result.arm("pre")["values"] == {"0": 0.93, "1": 0.95, "2": 0.94, "3": 0.935}
    assert result.arm("pre")["overrides"] == ["block=pre_norm"]
    assert result.expect is not None
    assert result.answer.startswith(f"{'As expected' if result.expect['verdict'] == 'supported' else 'Undecided'}")
    assert result.warnings == []
    assert result.seeds == [0, 1, 2, 3]
    assert len(result.cells) == len(result.curves) == 12
    with pytest.raises(KeyError):
        result.arm("nobody")


def test_the_same_sweep_by_plan_folder_name_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _sweep(tmp_path / "outputs")
    wanted = compare(plan).as_dict()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "norms.yaml").write_text("claim: x\n")
    for word in (plan.folder, plan.folder / "plan.json", "norms", "norms.yaml", ["norms"]):
        result = blockyard.compare(word).as_dict()
        assert result["arms"] == wanted["arms"], word
        assert result["cells"] == wanted["cells"]


def test_the_dictionary_is_json_with_null_for_what_is_no_number(tmp_path: Path) -> None:
    plan = _sweep(
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
    plan = sweep(tmp_path, arms, {**VALUES, "pre": states}, refused=[refused])
    plan = SweepPlan(**{**plan.__dict__, "variants": {k: v for k, v in plan.variants.items() if k != "wide"}})
    result = compare(plan)
    seen = {(cell["arm"], cell["seed"]): cell for cell in result.cells}
    assert {seed: seen["pre", seed]["state"] for seed in states} == {
        0: "done",
        1: "failed",
        2: "interrupted",
        3: "missing",
        4: "queued",
    }
    assert seen["pre", 1]["reason"] == "RuntimeError: out of memory"
    assert seen["pre", 3]["run"] is None
    assert seen["wide", 0]["state"] == "refused"
    assert _warned(result, "pre: 1 of 5 cells failed (RuntimeError: out of memory), seed 1")
    assert _warned(result, "pre: 1 of 5 cells missing, seed 3")
    assert _warned(result, "wide was refused: model.heads=3 does not divide")
    assert result.arm("wide")["n"] == 0
    assert "It was refused" in result.arm("wide")["words"]
    assert result.arm("pre")["n"] == 1
    assert result.arm("pre")["verdict"] == "too few seeds"


def test_a_running_cell_runs_only_while_somebody_holds_it(tmp_path: Path) -> None:
    plan = _sweep(tmp_path, values={**VALUES, "pre": {0: 0.9, 1: "running"}})
    cell = next(cell for cell in plan.cells if cell.variant == "pre" and cell.seed == 1)
    assert read_run(plan.path(cell)).state == "interrupted"
    lock = RunLock(plan.path(cell)).acquire()
    try:
        assert [c["state"] for c in compare(plan).cells if c["arm"] == "pre"] == ["done", "running"]
    finally:
        lock.release()


def test_a_sweep_that_has_just_begun_has_no_figures_but_a_table(tmp_path: Path) -> None:
    nothing: dict[str, dict[int, float | str]] = {arm: {0: "missing", 1: "missing"} for arm in ARMS}
    result = compare(_sweep(tmp_path, values=nothing, question={"expect": "pre > post"}))
    assert [arm["n"] for arm in result.arms] == [0, 0, 0]
    assert result.metric == "test/accuracy"
    assert "No verdict on test/accuracy yet" in result.answer
    json.dumps(result.as_dict(), allow_nan=False)


def test_an_expectation_that_cannot_be_judged_does_not_hide_the_figures(tmp_path: Path) -> None:
    result = compare(_sweep(tmp_path, question={"expect": "pre > nobody"}))
    assert result.expect is not None
    assert result.expect["verdict"] == "undecided"
    assert "unknown arm 'nobody'" in result.expect["reason"]
    assert result.arm("pre")["verdict"] == "better"


def test_damaged_files_of_a_run_take_only_that_run(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    first, second, third = (plan.path(cell) for cell in plan.cells if cell.variant == "pre" and cell.seed < 3)
    (first / "summary.json").write_text("{")
    (second / "summary.json").unlink()
    (third / "status.json").write_text("[]")
    (third / "metrics.csv").write_bytes(b"\xff\x00,")
    result = compare(plan)
    assert result.arm("pre")["n"] == 1
    assert _warned(
        result, "pre: 2 finished runs have no test/accuracy", "summary.json is damaged", "has no summary.json"
    )
    assert _warned(result, "pre: 1 of 4 cells interrupted")


def test_odd_values_in_a_run_s_files_hide_no_figure(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    path = plan.path(plan.cells[0])
    summary, facts = (json.loads((path / name).read_text()) for name in ("summary.json", "run.json"))
    summary |= {"peak_memory": 12345, "directions": ["x"], "device": ["cpu"], "precision": [32]}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "run.json").write_text(json.dumps(facts | {"versions": ["x"], "choices": ["x"], "git": "x"}))
    planned = compare(plan)
    assert planned.arm("pre")["n"] == 4
    assert _warned(planned, "the runs differ in device")
    assert len(compare([tmp_path]).arms) == len(planned.arms)


def test_runs_whose_config_is_damaged_are_left_out_aloud(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    for cell in plan.cells:
        if cell.variant == "pre":
            (plan.path(cell) / "config.yaml").write_text("a: [b")
    result = compare([tmp_path])
    assert len(result.arms) == len(plan.arms) - 1
    assert _warned(result, "skipped: 4 runs of ", "whose config is unreadable")
    for cell in plan.cells:
        (plan.path(cell) / "config.yaml").write_text("- 1")
    with pytest.raises(UserError, match="can be read"):
        compare([tmp_path])


def test_arms_that_share_a_run_are_an_error(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    cells = [Cell("pre", c.seed, c.run) if c.variant == "post" else c for c in plan.cells if c.variant != "pre"]
    twin = SweepPlan(**{**plan.__dict__, "cells": (*plan.cells, *(c for c in cells if c.variant == "pre"))})
    with pytest.raises(UserError, match=r"arms post and pre are the same run"):
        compare(twin)


# -- tuning --------------------------------------------------------------------------------------------


def _tuned(outputs: Path, tune_seeds: int | None = None, fails: tuple[str, int] | None = None) -> SweepPlan:
    """Two arms, three rates, three seeds. On validation 0.01 is best for post, 0.1 for pre; on test 0.002 is."""
    plan = _sweep(outputs)
    best = {"post": "0.01", "pre": "0.1"}
    variants, cells = {}, []
    for arm in ("post", "pre"):
        for number, rate in enumerate(("0.002", "0.01", "0.1")):
            made, choices = config(*ARMS[arm], f"optimizer.lr={rate}")
            key = f"{arm}#{number}"
            variants[key] = Variant(key, arm, made, choices, {"optimizer.lr": float(rate)})
            for seed in range(3):
                test = 0.99 if rate == "0.002" else 0.8 + 0.01 * seed + 0.02 * number
                metrics = {"val/accuracy": 0.9 if rate == best[arm] else 0.7, "test/accuracy": test, "test/loss": 1.0}
                figure: float | str = "failed" if fails == (key, seed) else test
                if tune_seeds and seed >= tune_seeds and rate != best[arm]:
                    figure = "missing"
                path = write(outputs, made, choices, seed, figure, {"metrics": metrics})
                cells.append(Cell(key, seed, f"{path.parent.name}/{path.name}"))
    question = {**plan.question, "tune": {"optimizer.lr": [0.002, 0.01, 0.1]}, "tune_seeds": tune_seeds}
    arms = tuple(arm for arm in plan.arms if arm.name != "alibi")
    return SweepPlan(
        **{**plan.__dict__, "arms": arms, "variants": variants, "cells": tuple(cells), "question": question}
    )


def test_settings_are_chosen_on_validation_and_reported_on_test(tmp_path: Path) -> None:
    result = compare(_tuned(tmp_path))
    assert result.arm("post")["budget"] == {"settings": 3, "chosen": {"optimizer.lr": 0.01}}
    assert result.arm("pre")["budget"] == {"settings": 3, "chosen": {"optimizer.lr": 0.1}}
    assert result.arm("post")["mean"] == pytest.approx(0.83)
    assert result.arm("pre")["mean"] == pytest.approx(0.85)
    assert len(result.tuning) == 6
    assert [row["setting"] for row in result.tuning if row["chosen"]] == [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.1}]
    assert len(result.cells) == 18
    end = "optimizer.lr: the largest of 0.002, 0.01, 0.1 was best for pre (0.1); a wider range may hold a better one"
    assert result.warnings == [end]
    other = compare(_tuned(tmp_path), metric="test/loss")
    assert other.arm("post")["budget"]["chosen"] == {"optimizer.lr": 0.01}, "the metric shown must not choose"


def test_settings_that_were_given_up_after_the_tuning_seeds_are_not_missing(tmp_path: Path) -> None:
    result = compare(_tuned(tmp_path, tune_seeds=1))
    assert [arm["n"] for arm in result.arms] == [3, 3]
    assert len(result.warnings) == 1  # of the end of the range
    assert len(result.cells) == 2 * (1 + 1 + 3)


def test_unequal_budgets_are_said(tmp_path: Path) -> None:
    plan = _tuned(tmp_path)
    lost = [cell for cell in plan.cells if cell.variant != "pre#0"]
    fewer = SweepPlan(**{**plan.__dict__, "cells": tuple(lost)})
    assert _warned(compare(fewer), "different tuning budgets; settings tried: post 3, pre 2")


def test_a_setting_with_a_failed_seed_is_not_chosen(tmp_path: Path) -> None:
    result = compare(_tuned(tmp_path, fails=("pre#2", 1)))
    assert result.arm("pre")["budget"] == {"settings": 3, "chosen": {"optimizer.lr": 0.002}}
    assert [cell["state"] for cell in result.cells].count("failed") == 1


# -- any runs ------------------------------------------------------------------------------------------


def _runs(outputs: Path) -> None:
    for seed in range(3):
        run(outputs, "block=pre_norm", seed=seed, figure=0.95 + 0.001 * seed)
        run(outputs, "block=post_norm", seed=seed, figure=0.90 + 0.002 * seed)
        run(outputs, "block=pre_norm", "optimizer.lr=0.01", seed=seed, figure=0.91 + 0.001 * seed**2)


def test_arms_are_found_and_named_by_what_differs(tmp_path: Path) -> None:
    _runs(tmp_path)
    result = compare(tmp_path)
    names = {
        "block=pre_norm optimizer.lr=0.001",
        "block=post_norm optimizer.lr=0.001",
        "block=pre_norm optimizer.lr=0.01",
    }
    assert {arm["name"] for arm in result.arms} == names
    assert all(arm["n"] == arm["planned"] == 3 for arm in result.arms)
    assert result.question is None
    assert _warned(result, "no baseline was given", "--baseline ARM")
    named = compare(tmp_path, baseline="block=post_norm")
    assert named.baseline == "block=post_norm optimizer.lr=0.001", "a part of a name is enough where only one has it"
    assert named.arm("block=pre_norm optimizer.lr=0.001")["verdict"] == "better"
    assert named.arm("block=pre_norm optimizer.lr=0.001")["levels"] == {"block": "pre_norm", "optimizer.lr": "0.001"}


def test_options_of_another_choice_are_not_part_of_a_name(tmp_path: Path) -> None:
    run(tmp_path, "token_mixer=attention", "token_mixer.qk_norm=true")
    run(tmp_path, "token_mixer=pool", "position=none")
    run(tmp_path, "token_mixer=pool", "token_mixer.size=5", "position=none")
    names = {arm["name"] for arm in compare(tmp_path).arms}
    assert names == {
        "position=learned token_mixer=attention",
        "position=none token_mixer=pool token_mixer.size=3",
        "position=none token_mixer=pool token_mixer.size=5",
    }


def test_incidental_options_make_no_arm(tmp_path: Path) -> None:
    run(tmp_path, "block=pre_norm", "name=one", "trainer.num_workers=2", seed=0)
    run(tmp_path, "block=pre_norm", "name=one", "trainer.num_workers=0", seed=1)
    run(tmp_path, "block=post_norm", "name=two", "trainer.num_workers=1", seed=1)
    arms = {arm["name"]: arm["n"] for arm in compare(tmp_path).arms}
    assert arms == {"one block=pre_norm": 2, "two block=post_norm": 1}  # the names that the runs were given come first


def test_runs_are_named_by_path_name_and_id(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    one = [run(outputs, "block=pre_norm", "name=good", seed=seed) for seed in range(2)]
    two = [run(outputs, "block=post_norm", "name=bad", seed=seed) for seed in range(2)]
    digits = one[0].parent.name.rpartition("-")[2]
    for words in ([*one, *two], [one[0].parent, two[0].parent], ["good", "bad"], [digits, "bad"], ["good/s0", "bad"]):
        result = compare([str(word) for word in words], outputs=outputs)
        assert {arm["name"] for arm in result.arms} == {"good block=pre_norm", "bad block=post_norm"}, words
    assert sum(arm["n"] for arm in compare(["good/s0", "bad"], outputs=outputs).arms) == 3


def test_one_arm_alone_has_a_mean_and_nothing_to_compare(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path, seed=seed, figure=0.9 + 0.01 * seed)
    result = compare(tmp_path)
    assert result.baseline is None
    assert result.arms[0]["mean"] == pytest.approx(0.91)
    assert "There is one arm only" in result.answer


def test_by_a_key_the_rest_is_averaged_seed_by_seed(tmp_path: Path) -> None:
    for seed in range(3):
        for rate, shift in (("0.001", 0.0), ("0.01", 0.1)):
            run(tmp_path, "block=pre_norm", f"optimizer.lr={rate}", seed=seed, figure=0.80 + shift + 0.01 * seed)
            run(tmp_path, "block=post_norm", f"optimizer.lr={rate}", seed=seed, figure=0.70 + shift + 0.01 * seed)
        run(tmp_path, "block=pre_norm", "optimizer.lr=0.1", seed=seed, figure=0.1)
    result = compare(tmp_path, by="block", baseline="block=post_norm")
    assert result.arm("block=pre_norm")["values"] == pytest.approx({"0": 0.85, "1": 0.86, "2": 0.87})
    assert result.arm("block=post_norm")["values"] == pytest.approx({"0": 0.75, "1": 0.76, "2": 0.77})
    assert _warned(result, "mean over 2 settings of optimizer.lr")
    assert _warned(result, "1 settings that not every arm has are left out")
    rates = compare(tmp_path, by="optimizer.lr", baseline="optimizer.lr=0.001")
    assert [arm["name"] for arm in rates.arms][:2] == ["optimizer.lr=0.001", "optimizer.lr=0.01"]
    with pytest.raises(
        UserError, match=r"--by position: all runs have position=learned; they differ in block, optimizer"
    ):
        compare(tmp_path, by="position")
    with pytest.raises(UserError, match=r"--by blok: no run has this key; the runs differ in block"):
        compare(tmp_path, by="blok")


def test_a_seed_that_one_setting_lacks_is_averaged_over_for_none(tmp_path: Path) -> None:
    for block in ("pre_norm", "post_norm"):
        for seed in range(3):
            run(tmp_path, f"block={block}", "optimizer.lr=0.001", seed=seed, figure=0.8)
            run(tmp_path, f"block={block}", "optimizer.lr=0.01", seed=seed, figure="failed" if seed == 1 else 0.9)
    result = compare(tmp_path, by="block")
    assert result.arm("block=pre_norm")["values"] == pytest.approx({"0": 0.85, "2": 0.85})


def test_by_works_on_a_sweep_too(tmp_path: Path) -> None:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]})
    values = {arm: {s: 0.8 + 0.01 * s + 0.1 * ("pre" in arm) for s in range(3)} for arm in arms}
    plan = sweep(tmp_path, arms, values, levels=levels)
    result = compare(plan, by="block", baseline="block=post_norm")
    assert result.arm("block=pre_norm")["difference"]["mean"] == pytest.approx(0.1)


def test_the_same_model_twice_is_an_error(tmp_path: Path) -> None:
    first = run(tmp_path / "a", "block=pre_norm", seed=0)
    other = run(tmp_path / "b", "block=pre_norm", seed=0)
    with pytest.raises(UserError, match="the same config and seed"):
        compare([first, other])
    facts = json.loads((other / "run.json").read_text()) | {"identity": "0123456789"}
    (other / "run.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="built the same model: they differ in no option that changes the result"):
        compare([first, other])


def test_a_second_attempt_counts_where_the_first_failed(tmp_path: Path) -> None:
    failed = run(tmp_path / "a", "block=pre_norm", seed=0, figure="failed")
    good = run(tmp_path / "b", "block=pre_norm", seed=0, figure=0.9)
    assert compare([failed, good]).arms[0]["n"] == 1
    assert compare([good, failed]).arms[0]["n"] == 1


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    _runs(outputs)
    plan = _sweep(outputs)
    (tmp_path / "empty").mkdir()
    for word, message in (
        ("norm", "no such path, run or sweep"),
        (str(tmp_path / "empty"), "contains no run"),
        (str(plan.folder / "missing.yaml"), "no such path"),
        ("x" * 5000, "no such path"),
        ("a\0b", "no such path"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            compare(word, outputs=outputs)
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
    plan = _sweep(tmp_path, summaries={"pre": {"step_seconds": 0.01}})
    assert compare(plan, metric="loss").metric == "test/loss"
    assert compare(plan, metric="val/loss").direction == "min"
    speed = compare(plan, metric="step_seconds")
    assert speed.direction == "min"
    assert speed.arm("pre")["mean"] == pytest.approx(0.01)


def test_directions_come_from_the_run_and_from_the_name_only_for_old_runs(tmp_path: Path) -> None:
    odd = {
        "metrics": {"test/score": 1.0, "test/loss": 1.0},
        "directions": {"test/score": "min"},
        "monitor": ["score", "min"],
    }
    result = compare(
        _sweep(tmp_path / "a", summaries=dict.fromkeys(ARMS, odd), question={"metric": None}), metric="test/score"
    )
    assert result.direction == "min"
    old = {"metrics": {"test/score": 1.0, "test/loss": 1.0}, "directions": None, "monitor": None}
    plan = _sweep(tmp_path / "b", summaries=dict.fromkeys(ARMS, old))
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
    rows = [{"name": "only", "n": 1, "verdict": "baseline", "difference": None}]
    assert answer(rows, baseline, "test/loss", None) == "There is one arm only, only: nothing to compare it with."
