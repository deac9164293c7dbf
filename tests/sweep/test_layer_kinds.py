"""Kinds of layers in sweeps: as arms, in a grid, tuned, and in a search space."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.config.layer_kinds import nodes_of_kinds
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.search.trial_config import arm_template
from tests.sweep.spec_plans import plan_from, refusals

BASE = """
claim: layers that differ
base: [experiment=gpt_code_small, position=rope, model.dim=16, "layers.pattern=[base,far]", "layers.kinds.far=[]"]
seeds: 2
metric: test/bits_per_byte
"""
ARMS = """
baseline: alike
arms:
  alike: []
  none: ["layers.kinds.far=[position=none]"]
  alibi: [layers.kinds.far.position=alibi]
"""
SEARCH = """
search:
  trials: 3
  space:
    layers.kinds.far.channel_mixer.expansion: {low: 1, high: 3}
    layers.kinds.far.norm: [layer, rms]
"""


def test_arms_and_grid(tmp_path: Path) -> None:
    grid = "grid:\n  layers.kinds.far: [[position=none], [position=alibi, norm=layer]]\n"
    grid += "  layers.pattern: [[base,far], [base,base,far]]\n"
    assert len({variant.key for variant in plan_from(tmp_path, BASE + grid).variants.values()}) == 4
    variants = plan_from(tmp_path, BASE + ARMS, name="y").variants.values()
    families = {variant.arm: {*nodes_of_kinds(variant.config)["far"]} for variant in variants}
    assert families == {"alike": set(), "none": {"position"}, "alibi": {"position"}}


@pytest.mark.full
def test_tuned(tmp_path: Path) -> None:
    tune = "tune: {layers.kinds.far.channel_mixer.expansion: [1, 2]}\n"
    variants = plan_from(tmp_path, BASE + ARMS + tune).variants.values()
    expansions = [nodes_of_kinds(each.config)["far"]["channel_mixer"]["expansion"] for each in variants]
    assert sorted(expansions) == [1, 1, 1, 2, 2, 2]


@pytest.mark.full
def test_searched(tmp_path: Path) -> None:
    """A kind gets a node of its own where a trial sets an option of it, and none where that says nothing."""
    plan = plan_from(tmp_path, BASE + ARMS + SEARCH)
    template = arm_template(plan, "alibi", CellComposer())
    assert template is not None
    own = template.variant.config["channel_mixer"]["expansion"]
    setting = {"layers.kinds.far.channel_mixer.expansion": 2.5, "layers.kinds.far.norm": "layer"}
    config, _, problems = template.config(setting, 0)
    assert not problems
    nodes = nodes_of_kinds(config)["far"]
    assert set(nodes) == {"position", "channel_mixer", "norm"}
    assert nodes["channel_mixer"] == config["channel_mixer"] | {"expansion": 2.5}
    unchanged, _, problems = template.config(
        {"layers.kinds.far.channel_mixer.expansion": own, "layers.kinds.far.norm": "rms"}, 0
    )
    assert not problems
    assert set(nodes_of_kinds(unchanged)["far"]) == {"position"}


def test_spaces_that_cannot_be_are_refused(tmp_path: Path) -> None:
    space = "search: {trials: 2, space: {layers.kinds.far.norm: [layer, rmss]}}\n"
    assert any("rmss" in problem for problem in refusals(tmp_path, BASE + ARMS + space))
    absent = "search: {trials: 2, space: {layers.kinds.near.norm: [layer, rms]}}\n"
    assert any("near" in problem for problem in refusals(tmp_path, BASE + ARMS + absent))
