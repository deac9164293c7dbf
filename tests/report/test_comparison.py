"""A comparison beside its statistics: warnings, what an arm changes, costs, curves, provenance."""

from __future__ import annotations

import base64
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from blockyard.engine.callbacks import attention_maps as callback
from blockyard.report.arms import attention_maps, fairness, pictures
from blockyard.report.arms.changes import changes
from blockyard.report.arms.rows import curve, thin
from blockyard.report.comparison import Comparison, compare
from blockyard.report.load.arms import ArmRuns, RunConfig, arm_names
from blockyard.report.load.document import ChangesRow, plain, read_document
from blockyard.report.load.run_record import read_run
from blockyard.report.render import columns
from blockyard.report.render.terminal import show
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import ARMS, config, grid, many, run, sweep, write

VALUES = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: 0.935},
    "alibi": {0: 0.9, 1: 0.91, 2: 0.92, 3: 0.9},
}


def _sweep(outputs: Path, **more: Any) -> SweepPlan:
    return sweep(outputs, ARMS, VALUES, **more)


def _warned(result: Comparison, *texts: str) -> bool:
    return any(all(text in line for text in texts) for line in result.warnings)


# -- fairness ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("summary", "facts", "texts"),
    [
        (
            {"data": {"fingerprint": "e" * 64, "train": 1294, "validation": 144, "test": 359}},
            {},
            ("data (fingerprint)", "pre"),
        ),
        (
            {"data": {"fingerprint": "d" * 64, "train": 1000, "validation": 144, "test": 359}},
            {},
            ("sizes of train", "1000/144"),
        ),
        ({"precision": {"precision": "bf16-mixed"}}, {}, ("precision", "bf16-mixed (pre)")),
        ({"device": "NVIDIA H200"}, {}, ("device", "NVIDIA H200 (pre)")),
        ({"threads": 2}, {}, ("threads", "2 (pre)")),
        ({"weights": "last.ckpt"}, {}, ("tested with the last weights instead of the best",)),
        ({}, {"git": {"commit": "b" * 40, "dirty": False}}, ("code (git commit)", "bbbbbbbbbb (pre)")),
        ({}, {"git": {"commit": "a" * 40, "dirty": True, "diff_hash": "ff"}}, ("code (git commit)", "with changes ff")),
        ({}, {"versions": {"blockyard": "0.2.0", "torch": "2.14.1"}}, ("version of blockyard", "0.2.0 (pre)")),
        ({}, {"versions": {"blockyard": "0.1.0", "torch": "2.11.0"}}, ("version of torch", "2.11.0 (pre)")),
    ],
)
def test_what_differs_between_arms_is_said(
    tmp_path: Path, summary: dict[str, Any], facts: dict[str, Any], texts: tuple[str, ...]
) -> None:
    plan = _sweep(tmp_path, summaries={"pre": summary}, facts={"pre": facts})
    result = compare(plan)
    assert _warned(result, *texts), result.warnings
    assert len(result.warnings) == 1


def test_what_differs_within_any_arm_is_said() -> None:
    """Also where the first value is that of an arm which does not vary."""
    runs = {"a": ["cpu", "cpu"], "b": ["cuda", "mps"]}
    arms: Any = [SimpleNamespace(name=name, done=own) for name, own in runs.items()]
    (sentence,) = fairness._differences("device", arms, lambda device: device)
    assert "the runs differ in device, also within an arm" in sentence
    (sentence,) = fairness._differences("device", [arms[0], SimpleNamespace(name="c", done=["cuda"])], lambda run: run)
    assert "within" not in sentence


def test_warnings_about_the_data_are_in_the_answer(tmp_path: Path) -> None:
    """Those of several seeds that differ in numbers alone once."""
    facts = {"data": {"fingerprint": "d" * 64, "warnings": ["5 of 60 texts are longer than data.context=32"]}}
    result = compare(_sweep(tmp_path, facts={"pre": facts}))
    assert _warned(result, "pre: 5 of 60 texts are longer than data.context=32"), result.warnings
    runs = [SimpleNamespace(facts={"data": {"warnings": [f"{n} of 9 rows repeat"]}}) for n in (3, 14)]
    arms: Any = [SimpleNamespace(name=name, done=runs) for name in "ab"]
    assert list(fairness._of_the_data(arms)) == ["3 of 9 rows repeat"]


@pytest.mark.parametrize(
    ("match", "size", "message"), [("params", 1.64, True), ("params", 1.02, False), (None, 1.64, False)]
)
def test_sizes_that_were_matched_and_are_not_equal_are_said(
    tmp_path: Path, match: str | None, size: float, message: bool
) -> None:
    """A vocabulary that is learned is smaller than the one by which sizes were matched."""
    counts = {"post": 1e5, "pre": size * 1e5, "alibi": 1e5}
    summaries = {arm: {"parameters": {"trainable": round(count)}} for arm, count in counts.items()}
    result = compare(_sweep(tmp_path, summaries=summaries, question={"match": match}))
    assert _warned(result, "matched in parameters", "pre has 1.64 times those of post") == message


@pytest.mark.parametrize(
    ("missed", "cause"),
    [(-0.055, "a width is a multiple of model.heads"), (-0.01, "before a tokenizer has learned its vocabulary")],
)
def test_a_mismatch_that_the_plan_knew_is_not_called_one_of_the_vocabulary(
    tmp_path: Path, missed: float, cause: str
) -> None:
    counts = {"post": 1e5, "pre": 0.94e5, "alibi": 1e5}
    summaries = {arm: {"parameters": {"trainable": round(count)}} for arm, count in counts.items()}
    plan = _sweep(tmp_path, summaries=summaries, question={"match": "params"})
    sizes = {"by": "params", "target": 100_000, "arms": {"pre": {"dim": 68, "value": 94_500, "off": missed, "unit": 4}}}
    result = compare(replace(plan, facts=plan.facts | {"match": sizes}))
    (warning,) = [line for line in result.warnings if "matched in parameters" in line]
    assert "pre has 0.94 times those of post" in warning
    assert cause in warning


@pytest.mark.parametrize(("load", "message"), [(2.4, False), (6.0, True)])
def test_times_of_an_unequally_busy_machine_are_not_trusted(tmp_path: Path, load: float, message: bool) -> None:
    for seed in range(3):
        run(tmp_path, "block=pre_norm", seed=seed, summary={"load": 2.0})
        run(tmp_path, "block=post_norm", seed=seed, summary={"load": load})
    assert _warned(compare(tmp_path), "the load of the machine differed", "2.0 to 6.0") == message


def test_what_an_old_run_does_not_say_is_no_difference(tmp_path: Path) -> None:
    silent = {"threads": None, "device": None, "precision": None, "data": {}}
    result = compare(_sweep(tmp_path, summaries={"pre": silent}, facts={"pre": {"git": None, "versions": {}}}))
    assert result.warnings == []


def test_what_differs_within_an_arm_is_said_so(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path, "block=pre_norm", seed=seed, summary={"threads": 1 + seed % 2})
        run(tmp_path, "block=post_norm", seed=seed, summary={"threads": 1})
    assert _warned(compare(tmp_path), "threads, also within an arm")


def test_changes_that_were_not_committed_are_said_even_where_all_have_them(tmp_path: Path) -> None:
    git = {"git": {"commit": "a" * 40, "dirty": True, "diff_hash": "ff"}}
    result = compare(_sweep(tmp_path, facts=dict.fromkeys(ARMS, git)))
    assert _warned(result, "uncommitted changes, the same for all runs")


# -- what an arm changes, costs, curves ----------------------------------------------------------------


def test_an_arms_real_difference_is_told(tmp_path: Path) -> None:
    arms = {"base": ["block=pre_norm"], "deep": ["model.depth=6"], "post": ["block=post_norm", "optimizer.lr=0.01"]}
    result = compare(sweep(tmp_path, arms, {arm: {0: 0.9} for arm in arms}))
    deep, post = result.arm("deep").changes, result.arm("post").changes
    assert deep.config == {"model.depth": [4, 6]}
    assert deep.parameters == [13288, 19432]
    assert deep.modules == {"blocks.4": [None, "PreNorm"], "blocks.5": [None, "PreNorm"]}
    assert post.config == {"block": ["pre_norm", "post_norm"], "optimizer.lr": [0.001, 0.01]}
    assert post.modules["final_norm"] == ["Layer", "Identity"]
    assert result.arm("base").changes == ChangesRow(config={}, modules={}, parameters=None)


def test_a_config_that_names_a_strange_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    resolved, choices = config("block=pre_norm")
    resolved["block"] = {"_target_": "evil.Block", "_partial_": True}
    write(tmp_path / "o", resolved, choices, 0, 0.9, facts={"identity": "abc", "choices": {**choices, "block": None}})
    resolved["allow"] = ["evil"]
    frozen = next((tmp_path / "o").glob("*/s0/config.yaml"))
    frozen.write_text(frozen.read_text().replace("allow: []", "allow: [evil]"))
    assert "allow: [evil]" in frozen.read_text()
    run(tmp_path / "o", "block=pre_norm", figure=0.8)
    result = compare(tmp_path / "o")
    assert {arm.name for arm in result.arms} == {"block=evil", "block=pre_norm"}
    assert changes(ArmRuns("x", resolved), ArmRuns("y", config()[0]), (1, 2)).modules == {}


def test_costs_and_their_ratios_stand_beside_quality(tmp_path: Path) -> None:
    cheap = {"flops_per_sample": {"forward": 1, "training": 100}, "cache_bytes_per_token": 64.0}
    result = compare(_sweep(tmp_path, summaries={"alibi": cheap, "post": {"cache_bytes_per_token": 256.0}}))
    assert result.arm("alibi").cost["flops_per_sample"] == 100
    assert result.arm("alibi").cost_ratio["cache_bytes_per_token"] == 0.25
    assert result.arm("pre").cost_ratio["cache_bytes_per_token"] is None
    assert result.arm("pre").cost_ratio["parameters"] == 1.0
    assert [arm.name for arm in result.arms if arm.pareto] == ["pre", "alibi"]
    assert [arm.name for arm in compare(_sweep(tmp_path), cost_axis="seconds").arms if arm.pareto] == ["pre"]


def test_curves_have_every_axis_and_few_points(tmp_path: Path) -> None:
    path = run(tmp_path, points=900)
    one = curve(read_run(path, arm="a"))
    assert len(one.step) == 200
    assert one.step[-1] == 9000
    assert one.flops[-1] == pytest.approx(one.samples[-1] * 79728, rel=1e-5)
    judged = [value for value in one.metrics["val/loss"] if value is not None]
    assert len(judged) >= 199, "validation comes first"
    assert set(one.metrics) == {"train/loss", "val/loss", "val/accuracy"}
    records = [{"step": step, "train/loss": 1.0} for step in range(1000)]
    assert [row["step"] for row in thin(records, 5)][-1] == 999
    assert thin(records, 5000) is records
    judged_first = [row | {"val/loss": 1.0} for row in records[:-1]] + records[-1:]
    kept = [row["step"] for row in thin(judged_first, 10)]
    assert len(kept) == 10
    assert kept[-1] == 999
    assert curve(read_run(tmp_path / "nothing")).step == []


def test_a_grid_has_effects_and_one_factor_at_a_time_simple_ones(tmp_path: Path) -> None:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]})
    values = {
        arm: {s: 0.8 + 0.01 * s + 0.001 * place * s + 0.1 * ("pre" in arm) for s in range(3)}
        for place, arm in enumerate(arms)
    }
    crossed = compare(sweep(tmp_path / "a", arms, values, levels=levels, question={"kind": "grid"}))
    assert crossed.effects is not None
    assert crossed.effects.main[0].factor == "block"
    assert crossed.effects.interactions[0].factors == ["block", "optimizer.lr"]
    one = compare(sweep(tmp_path / "b", arms, values, levels=levels, question={"kind": "one_at_a_time"}))
    assert one.effects is not None
    assert one.effects.interactions == []
    assert compare(sweep(tmp_path / "c", arms, values, levels=levels, question={"kind": "zip"})).effects is None
    assert compare(tmp_path / "a").effects is not None, "arms inferred from runs may make a grid"


def test_what_an_arm_changes_can_be_left_out(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    with_, without = compare(plan).as_dict(), compare(plan, changes=False).as_dict()
    assert without["arms"][1]["changes"]["config"] == {}
    for arm in (*with_["arms"], *without["arms"]):
        arm.pop("changes")
    assert with_["arms"] == without["arms"]


def test_maps_of_several_attentions_in_a_block_have_names_of_their_own(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    paths = ["encoder.blocks.0.token_mixer", "decoder.blocks.0.token_mixer", "decoder.blocks.0.cross_mixer"]
    saved = [(0, path, None) for path in paths] + [(1, "decoder.blocks.1.token_mixer", head) for head in (0, 1, 0)]
    maps = [
        {"step": 1, "layer": layer, "path": path, "head": head, "map": [[1.0]]}
        for layer, path, head in [*saved, (None, "head.mixer", None)]
    ]
    run = plan.path(next(cell for cell in plan.cells if cell.variant == "post"))
    (run / attention_maps.FILE).write_text(json.dumps({"maps": maps}))
    assert [one.layer for one in compare(plan).attention] == [
        *(*paths, "block 1, head 0", "block 1, head 1", "block 1, visit 2, head 0", "head.mixer")
    ]


def test_maps_are_looked_for_where_the_callback_leaves_them() -> None:
    assert attention_maps.FILE == callback.FILE


def test_pictures_of_predictions_are_those_of_the_first_run_that_has_any(tmp_path: Path) -> None:
    plan = _sweep(tmp_path)
    arm = "post"
    first, second = [plan.path(cell) for cell in plan.cells if cell.variant == arm][:2]
    png = b"\x89PNG\r\n\x1a\n"
    (first / "forecast.png").write_bytes(b"<svg onload=alert(1)>")
    (second / "inspect").mkdir()
    (second / "forecast.png").write_bytes(png + b"one")
    (second / "inspect" / "restore.png").write_bytes(png + b"two")
    shown = compare(plan).predictions
    assert [(one.arm, one.seed, one.name) for one in shown] == [
        (arm, 1, "forecast"),
        (arm, 1, "restoration"),
    ]
    assert base64.b64decode(shown[0].image.removeprefix("data:image/png;base64,")) == png + b"one"
    (second / "forecast.png").write_bytes(png + bytes(pictures.MAX_BYTES))
    assert [one.name for one in compare(plan).predictions] == ["restoration"]


def test_where_it_comes_from_is_kept(tmp_path: Path) -> None:
    provenance = compare(_sweep(tmp_path)).provenance
    assert provenance.code["commit"] == "a" * 40
    assert provenance.command == ["blockyard", "sweep", "sweeps/norms.yaml"]
    assert provenance.data["fingerprint"] == "d" * 64
    assert provenance.host["name"] == "host"


@pytest.mark.full
def test_five_hundred_runs_are_compared_in_seconds(tmp_path: Path) -> None:
    plan = many(tmp_path)
    before = os.times()
    result = compare(plan)
    after = os.times()
    assert len(result.arms) == 100
    assert len(result.curves) == 500
    assert after.user - before.user < 15


def test_a_run_that_goes_on_from_another_is_named_by_its_budget() -> None:
    """The config of `resume=RUN trainer.max_epochs=2` names its parent in `init`, which says nothing new."""
    init = {"_target_": "blockyard.weights.init.Init", "parent": "/x/a-0/s0", "parent_sha256": "abc"}
    init["lora"] = {"rank": 0, "alpha": 16.0, "layers": ["blocks"]}  # as a frozen config has it
    configs = {"first": {"trainer": {"max_epochs": 1}}, "second": {"trainer": {"max_epochs": 2}, "init": init}}
    names = arm_names({name: RunConfig(each, {}) for name, each in configs.items()})
    assert names == {"first": "trainer.max_epochs=1", "second": "trainer.max_epochs=2"}


def test_flops_are_labelled_as_those_of_training(tmp_path: Path) -> None:
    """`check` prints those of the forward pass of the same model, a third of them."""
    data = compare(_sweep(tmp_path))
    assert "training FLOPs/sample" in columns.costs(data)[0]
    assert "training FLOPs per sample" in columns.cost_notes(data)[-1]


def test_a_saved_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    data = compare(_sweep(tmp_path)).as_dict()
    assert plain(read_document(data)) == data
    earlier = {key: value for key, value in data.items() if key not in ("ranges", "ladder", "tuned_by")}
    later = earlier | {"colour": "blue"}
    assert plain(read_document(later)) == data | {"ranges": {}}
    with pytest.raises(ValueError, match="expected a list"):
        read_document(data | {"arms": "none"})
    with pytest.raises(ValueError, match="expected a mapping"):
        read_document(data | {"expect": []})


# -- many arms -----------------------------------------------------------------------------------------


def test_the_answer_counts_many_arms_and_names_the_furthest(tmp_path: Path) -> None:
    """Five arms are better than the first one beyond the noise, the last of them by the most."""
    rates = {f"lr_{number}": [f"optimizer.lr={0.001 * (number + 1)}"] for number in range(10)}
    values: dict[str, dict[int, float | str]] = {}
    for number, arm in enumerate(rates):
        shift = max(0.0, 0.01 * (number - 3))
        values[arm] = {seed: 0.8 + shift + 0.001 * ((seed * (number + 2)) % 5) for seed in range(5)}
    answer = compare(sweep(tmp_path, rates, values), changes=False).answer
    assert answer.startswith("On test/accuracy against lr_0: 5 arms are better, most of all lr_9 (+0.06)")
    assert "; no difference is shown for 4 arms." in answer


def test_many_diverged_arms_are_counted(tmp_path: Path) -> None:
    rates = {f"lr_{number}": [f"optimizer.lr={0.001 * (number + 1)}"] for number in range(6)}
    values: dict[str, dict[int, float | str]] = {arm: {0: 0.9, 1: 0.91, 2: "diverged"} for arm in rates}
    answer = compare(sweep(tmp_path, rates, values), changes=False).answer
    assert "6 runs of 6 arms ended with a loss that is not finite, so the arms are compared by order" in answer


def test_warnings_of_one_kind_are_one_line_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{arm}: 1 of 4 cells failed (step {step})" for step, arm in enumerate((*ARMS, "post", "pre"), start=40)]
    result = replace(compare(_sweep(tmp_path), changes=False), warnings=[*lines, "the load differed (0.5 to 2.0)"])
    assert columns.warning_groups(result) == [lines, ["the load differed (0.5 to 2.0)"]]
    show(result)
    printed = capsys.readouterr().out
    assert "post: 1 of 4 cells failed (step 40) (and 4 more like this, see --html)" in printed
    assert "step 41" not in printed
    assert "the load differed (0.5 to 2.0)" in printed


def test_names_are_whole_on_a_terminal_where_intervals_and_ratios_break(tmp_path: Path) -> None:
    long = {f"{arm}_with_a_longer_name": overrides for arm, overrides in ARMS.items()}
    values = {f"{arm}_with_a_longer_name": of_arm for arm, of_arm in VALUES.items()}
    faster = {"pre_with_a_longer_name": {"step_seconds": 0.01, "seconds": 1.5}}
    result = compare(sweep(tmp_path, long, values, summaries=faster), changes=False)
    printed = io.StringIO()
    show(result, Console(width=100, force_terminal=True, color_system=None, file=printed))
    lines = printed.getvalue().splitlines()
    assert sum(line.startswith("pre_with_a_longer_name ") for line in lines) == 2  # of quality and of cost
    assert max(map(len, lines)) <= 100
    assert any(line.split() == ["(0.50x)", "(0.50x)"] for line in lines)
