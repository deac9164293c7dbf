"""From any run folders to arms: named by what differs, averaged by a key, and what is not there."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from blockyard.errors import UserError
from blockyard.report.comparison import compare
from tests.report.report_runs import grid, run, runs_of_three_arms, sweep, warned
from tests.support.every import every


def test_arms_are_found_and_named_by_what_differs(tmp_path: Path) -> None:
    runs_of_three_arms(tmp_path)
    result = compare(tmp_path)
    names = {
        "block=pre_norm optimizer.lr=0.001",
        "block=post_norm optimizer.lr=0.001",
        "block=pre_norm optimizer.lr=0.01",
    }
    assert {arm.name for arm in result.arms} == names
    assert every(arm.n == arm.planned == 3 for arm in result.arms)
    assert result.question is None
    assert warned(result, "no baseline was given", "--baseline ARM")
    named = compare(tmp_path, baseline="block=post_norm")
    assert named.baseline == "block=post_norm optimizer.lr=0.001", "a part of a name is enough where only one has it"
    assert named.arm("block=pre_norm optimizer.lr=0.001").verdict == "better"
    assert named.arm("block=pre_norm optimizer.lr=0.001").levels == {"block": "pre_norm", "optimizer.lr": "0.001"}


def test_options_of_another_choice_are_not_part_of_a_name(tmp_path: Path) -> None:
    run(tmp_path, "token_mixer=attention", "token_mixer.qk_norm=true")
    run(tmp_path, "token_mixer=pool", "position=none")
    run(tmp_path, "token_mixer=pool", "token_mixer.size=5", "position=none")
    names = {arm.name for arm in compare(tmp_path).arms}
    assert names == {
        "position=learned token_mixer=attention",
        "position=none token_mixer=pool token_mixer.size=3",
        "position=none token_mixer=pool token_mixer.size=5",
    }


def test_incidental_options_make_no_arm(tmp_path: Path) -> None:
    run(tmp_path, "block=pre_norm", "name=one", "trainer.num_workers=2", seed=0)
    run(tmp_path, "block=pre_norm", "name=one", "trainer.num_workers=0", seed=1)
    run(tmp_path, "block=post_norm", "name=two", "trainer.num_workers=1", seed=1)
    arms = {arm.name: arm.n for arm in compare(tmp_path).arms}
    assert arms == {"one block=pre_norm": 2, "two block=post_norm": 1}  # the names that the runs were given come first


def test_runs_are_named_by_path_name_and_id(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    one = [run(outputs, "block=pre_norm", "name=good", seed=seed) for seed in range(2)]
    two = [run(outputs, "block=post_norm", "name=bad", seed=seed) for seed in range(2)]
    digits = one[0].parent.name.rpartition("-")[2]
    for names in ([*one, *two], [one[0].parent, two[0].parent], ["good", "bad"], [digits, "bad"], ["good/s0", "bad"]):
        result = compare([str(name) for name in names], outputs=outputs)
        assert {arm.name for arm in result.arms} == {"good block=pre_norm", "bad block=post_norm"}, names
    assert sum(arm.n for arm in compare(["good/s0", "bad"], outputs=outputs).arms) == 3


def test_one_arm_alone_has_a_mean_and_nothing_to_compare(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path, seed=seed, figure=0.9 + 0.01 * seed)
    result = compare(tmp_path)
    assert result.baseline is None
    assert result.arms[0].mean == pytest.approx(0.91)
    assert "There is one arm only" in result.answer


def test_by_a_key_the_rest_is_averaged_seed_by_seed(tmp_path: Path) -> None:
    for seed in range(3):
        for rate, shift in (("0.001", 0.0), ("0.01", 0.1)):
            run(tmp_path, "block=pre_norm", f"optimizer.lr={rate}", seed=seed, figure=0.80 + shift + 0.01 * seed)
            run(tmp_path, "block=post_norm", f"optimizer.lr={rate}", seed=seed, figure=0.70 + shift + 0.01 * seed)
        run(tmp_path, "block=pre_norm", "optimizer.lr=0.1", seed=seed, figure=0.1)
    result = compare(tmp_path, by="block", baseline="block=post_norm")
    assert result.arm("block=pre_norm").values == pytest.approx({"0": 0.85, "1": 0.86, "2": 0.87})
    assert result.arm("block=post_norm").values == pytest.approx({"0": 0.75, "1": 0.76, "2": 0.77})
    assert warned(result, "mean over 2 settings of optimizer.lr")
    assert warned(result, "1 settings that not every arm has are left out")
    with pytest.raises(UserError, match="several runs on each seed"):
        compare(tmp_path, by="block", baseline="block=post_norm", over="samples")
    rates = compare(tmp_path, by="optimizer.lr", baseline="optimizer.lr=0.001")
    assert [arm.name for arm in rates.arms][:2] == ["optimizer.lr=0.001", "optimizer.lr=0.01"]
    with pytest.raises(
        UserError, match=r"--by position: all runs have position=learned; they differ in block, optimizer"
    ):
        compare(tmp_path, by="position")
    with pytest.raises(UserError, match=r"--by blok: no run has this key; the runs differ in block"):
        compare(tmp_path, by="blok")


def test_by_several_keys_each_combination_of_values_is_an_arm(tmp_path: Path) -> None:
    """The other option, here the rate, is averaged over; values that are numbers are in their order."""
    for seed, (number, dim), block in itertools.product(range(3), enumerate((8, 16, 128)), ("pre_norm", "post_norm")):
        for rate, shift in (("0.001", 0.0), ("0.01", 0.1)):
            figure = 0.5 + shift + 0.01 * seed + 0.03 * number * (block == "pre_norm")
            run(tmp_path, f"block={block}", f"model.dim={dim}", f"optimizer.lr={rate}", seed=seed, figure=figure)
    result = compare(tmp_path, by="block, model.dim", changes=False)
    assert [arm.name for arm in result.arms][3:] == [f"block=pre_norm model.dim={dim}" for dim in (8, 16, 128)]
    assert result.arms[-1].levels == {"block": "pre_norm", "model.dim": "128"}
    assert result.arms[-1].values == pytest.approx({"0": 0.61, "1": 0.62, "2": 0.63})
    assert warned(result, "mean over 2 settings of optimizer.lr")
    assert result.effects is not None
    assert result.effects.interactions[0].factors == ["block", "model.dim"]
    listed = compare(tmp_path, by=["block", "model.dim"], changes=False)
    assert listed.arms == result.arms
    assert len(compare(tmp_path, by="block,model.dim,optimizer.lr", changes=False).arms) == 12


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("block,,model.dim", "--by block,,model.dim: a key is empty; expected KEY or KEY,KEY"),
        ("block,block", "--by block,block: a key is named twice"),
        ("block,position", "--by position: all runs have position=learned; they differ in block, optimizer.lr"),
        ("block,blok", "--by blok: no run has this key; the runs differ in block, optimizer.lr"),
    ],
)
def test_keys_that_make_no_arms_are_refused(tmp_path: Path, by: str, message: str) -> None:
    runs_of_three_arms(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        compare(tmp_path, by=by)


def test_a_seed_that_one_setting_lacks_is_averaged_over_for_none(tmp_path: Path) -> None:
    for block in ("pre_norm", "post_norm"):
        for seed in range(3):
            run(tmp_path, f"block={block}", "optimizer.lr=0.001", seed=seed, figure=0.8)
            run(tmp_path, f"block={block}", "optimizer.lr=0.01", seed=seed, figure="failed" if seed == 1 else 0.9)
    result = compare(tmp_path, by="block")
    assert result.arm("block=pre_norm").values == pytest.approx({"0": 0.85, "2": 0.85})
    assert warned(result, "2 of 12 cells of 2 arms failed", "block=pre_norm s1")


def test_an_average_that_no_seed_has_is_not_said_to_be_unrecorded(tmp_path: Path) -> None:
    for seed in range(2):
        for block in ("pre_norm", "post_norm"):
            run(tmp_path, f"block={block}", "optimizer.lr=0.001", seed=seed, figure=0.8)
        run(tmp_path, "block=pre_norm", "optimizer.lr=0.01", seed=seed, figure="failed")
        run(tmp_path, "block=post_norm", "optimizer.lr=0.01", seed=seed, figure=0.9)
    text = compare(tmp_path, by="block", baseline="block=post_norm").arm("block=pre_norm").words
    assert "no test/" not in text
    assert "No seed has a finished run of each of its settings" in text


def test_by_works_on_a_sweep_too(tmp_path: Path) -> None:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]})
    values = {arm: {s: 0.8 + 0.01 * s + 0.1 * ("pre" in arm) for s in range(3)} for arm in arms}
    plan = sweep(tmp_path, arms, values, levels=levels)
    result = compare(plan, by="block", baseline="block=post_norm")
    assert result.arm("block=pre_norm").difference.mean == pytest.approx(0.1)


def test_by_leaves_the_ladder_of_a_sweep_and_says_what_seeds_followed_from_results(tmp_path: Path) -> None:
    arms, levels = grid({"block": ["pre_norm", "post_norm"], "optimizer.lr": ["0.001", "0.01"]})
    values = {arm: {s: 0.8 + 0.01 * s for s in range(3)} for arm in arms}
    question = {"ladder": {"params": [1e4]}, "until": {"first": 2, "most": 3}, "seeds": [0, 1, 2]}
    plan = sweep(tmp_path, arms, values, levels=levels, question=question)
    result = compare(plan, by="block", baseline="block=post_norm")
    assert {arm.name for arm in result.arms} == {"block=pre_norm", "block=post_norm"}
    assert result.ladder is None
    assert warned(result, "followed from its results")


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
    assert compare([failed, good]).arms[0].n == 1
    assert compare([good, failed]).arms[0].n == 1
