"""Sweeps in which each seed has a split of the data of its own: plan, statistics, comparison."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.resplit import SHIFT, rates
from blockyard.cli import main
from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.render.markdown import markdown
from blockyard.report.stats.effects import grid_effects
from blockyard.report.stats.resplit import difference_of_sums, split_difference, split_mean
from blockyard.runs.folder import RunFolder
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import grid, norms_sweep, warned
from tests.support.every import every
from tests.sweep.spec_plans import plan_from, refusals

ARMS = ("plain", "rms")
FILE = """\
claim: x
base: [experiment=vit_digits, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, trainer=cpu{base}]
arms: {{plain: [], rms: [norm=rms{arm}]}}
seeds: {seeds}
resplit: true
{more}"""


def text(*, base: str = "", arm: str = "", seeds: str = "2", more: str = "") -> str:
    return FILE.format(base=base, arm=arm, seeds=seeds, more=more)


def test_the_variance_is_that_of_nadeau_and_bengio() -> None:
    """t = mean / sqrt((1 / J + n_test / n_train) S^2), from the formula."""
    gaps, ratio = np.array([0.02, -0.01, 0.03, 0.015, 0.0]), 359 / 1294
    gap = split_difference(list(gaps), ratio)
    error = math.sqrt((1 / 5 + ratio) * gaps.var(ddof=1))
    assert gap.t_p == pytest.approx(2 * stats.t.sf(gaps.mean() / error, 4))
    assert gap.interval == pytest.approx(stats.t.interval(0.95, 4, gaps.mean(), error))
    mean = split_mean(list(gaps), ratio)
    assert (mean.mean, mean.interval) == (gap.mean, gap.interval)


def test_without_test_samples_it_is_the_paired_t_test() -> None:
    gaps = [0.02, -0.01, 0.03, 0.015]
    assert split_difference(gaps, 0.0).t_p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)


def test_every_metric_of_an_arm_has_the_corrected_interval(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"resplit": True}), changes=False)
    (arm, *_) = (one for one in result.arms if one.n > 2)
    loss = [1.21 - value for value in arm.values.values() if value is not None]
    shown = arm.other["test/loss"]
    assert shown.interval == pytest.approx(split_mean(loss, 359 / 1294).interval)


def test_equal_differences_have_no_test() -> None:
    assert split_difference([0.0] * 4, 0.3).p == 1.0
    assert split_difference([0.25] * 4, 0.3).p is None
    assert split_difference([0.25], 0.3).interval is None


def test_sums_are_over_the_seeds_that_all_arms_have() -> None:
    values = {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {0: 0.5, 1: 1.0}, "c": {0: 0.0, 1: 0.5, 3: 1.0}}
    gap = difference_of_sums(values, 0.3, ("a", "c"), ("b", "b"))
    assert (gap.n, gap.mean) == (2, 0.25)


def test_two_equally_good_arms_are_told_apart_in_few_sweeps() -> None:
    """Where a plain t test is wrong in far more than the 5 % that it says."""
    plain, corrected = rates(120, 200, 10, 0.2, (SHIFT, SHIFT))
    assert plain > 0.12
    assert corrected < 0.08


def test_effects_of_a_grid_are_as_uncertain_as_differences() -> None:
    """With one seed more or less uncertain by the same factor as the difference of two arms."""
    _, levels = grid({"block": ["pre_norm", "post_norm"], "norm": ["layer", "rms"]})
    draw = np.random.default_rng(0)
    values = {arm: dict(enumerate(draw.normal(size=5))) for arm in levels}
    plain, wide = grid_effects(values, levels), grid_effects(values, levels, 4.0)
    assert plain is not None
    assert wide is not None
    for narrow, broad in zip(plain.main, wide.main, strict=True):
        lengths = [row.interval[1] - row.interval[0] for row in (narrow, broad) if row.interval]
        assert lengths[1] == pytest.approx(2 * lengths[0])
        assert (broad.p or 0) > (narrow.p or 0)
    assert pytest.approx((plain.interactions[0].F or 0) / 4) == wide.interactions[0].F


def test_each_seed_has_a_folder_and_a_split_of_its_own(tmp_path: Path) -> None:
    plan = plan_from(tmp_path, text(seeds="[3, 5]"))
    assert [plan.config(cell)["data"]["split_seed"] for cell in plan.cells] == [3, 5, 3, 5]
    assert len({cell.run.partition("/")[0] for cell in plan.cells}) == 4
    plan.save()
    again = SweepPlan.load(plan.folder)
    assert again.cells == plan.cells
    assert again.config(again.cells[1]) == plan.config(plan.cells[1])


def test_keys_that_it_does_not_suit_are_refused(tmp_path: Path) -> None:
    assert "no test with looks" in " ".join(refusals(tmp_path, text(seeds="{until: decided}")))
    assert "remove `over`" in " ".join(refusals(tmp_path, text(more="over: both")))
    assert "without a correction" in " ".join(refusals(tmp_path, text(more="success: test/accuracy >= 0.9")))
    assert "from rms, base" in " ".join(refusals(tmp_path, text(base=", data.split_seed=1", arm=", data.split_seed=2")))
    assert "expected true or false" in " ".join(refusals(tmp_path, text().replace("resplit: true", "resplit: 3")))


def test_data_with_one_split_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data set without the option, and files that name the splits."""
    reasons = refusals(tmp_path, text().replace("experiment=vit_digits", "experiment=recall"))
    assert any("it has no data.split_seed" in reason for reason in reasons)
    parts = ["train", "val", "test"]
    rows = [f"word{i} {'good' if i % 2 else 'bad'},{i % 2},{parts[i // 2 % 3]}" for i in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label,split", *rows]) + "\n")
    (tmp_path / "fixed.yaml").write_text(
        f"claim: x\nbase: [experiment=spam_table, debug=fast, data.path={tmp_path / 't.csv'}, logger=none]\n"
        "arms: {plain: [], rms: [norm=rms]}\nseeds: 2\nresplit: true\n"
    )
    assert main(["sweep", str(tmp_path / "fixed.yaml"), "--dry-run", f"outputs={tmp_path / 'out'}"]) == 2
    assert "data.split_seed changes nothing here" in capsys.readouterr().err


@pytest.mark.full
def test_a_sweep_trains_each_seed_on_its_split_and_its_answer_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.yaml").write_text(text(seeds="3", more="expect: rms > plain\n"))
    assert main(["sweep", str(tmp_path / "q.yaml"), f"outputs={tmp_path / 'out'}", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "3 seeds, which have splits of their own that overlap," in out
    plan = SweepPlan.load(tmp_path / "out/sweeps/q")
    folders = {(cell.variant, cell.seed): RunFolder.open(plan.path(cell)) for cell in plan.cells}
    prints = {key: folder.facts()["data"]["fingerprint"] for key, folder in folders.items()}
    assert len(set(prints.values())) == 3
    assert every(prints["plain", seed] == prints["rms", seed] for seed in range(3))
    result = compare(plan, changes=False)
    gap = result.arm("rms").difference
    assert gap is not None
    values = {arm: [folders[arm, seed].summary()["metrics"]["test/accuracy"] for seed in range(3)] for arm in ARMS}
    sizes = folders["rms", 0].summary()["data"]
    expected = split_difference(list(np.subtract(values["rms"], values["plain"])), sizes["test"] / sizes["train"])
    assert gap.t_p == pytest.approx(expected.t_p)
    assert gap.over == "splits"
    assert "for new seeds and new splits of these data" in result.arm("rms").words
    assert "Nadeau and Bengio" in markdown(result)
    assert not warned(result, "data (fingerprint)")
    for more in ({"over": "seeds"}, {"over": "both"}, {"ladder": "model.dim"}):
        with pytest.raises(UserError, match="a split of its own"):
            compare(plan, changes=False, **more)


def test_seeds_that_share_a_split_are_a_warning(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"resplit": True}), changes=False)
    assert warned(result, "some seeds have the same split")
