"""Matching: the width that brings an arm nearest to the baseline's parameters, or FLOPs."""

from __future__ import annotations

import pytest

from blockyard.config.build import Components
from blockyard.config.size_matching import ModelSizes
from blockyard.ops.flops import counter
from tests.sweep.spec_plans import plan_from, refusals

BASE = "claim: x\nbase: [experiment=vit_digits, model.depth=1, model.dim=32, model.heads=2, logger=none]\n"
ARMS = "arms: {plain: [], glu: [channel_mixer=glu], deep: [model.depth=3], four: [model.heads=4], " + (
    "fourier: [token_mixer=fourier]}"
)


def test_each_width_is_the_best_there_is(tmp_path):
    """Against every width around it, tried one by one."""
    sweep_plan = plan_from(tmp_path, f"{BASE}{ARMS}\nmatch: params")
    record, scales = sweep_plan.facts["match"], ModelSizes()
    target = scales.measure(sweep_plan.variants["plain"].config, "params")
    assert record["target"] == target
    for name, variant in sweep_plan.variants.items():
        config, match = variant.config, record["arms"][name]
        assert config["model"]["dim"] == match["dim"]
        assert sum(p.numel() for p in Components(config).model(0).parameters()) == match["value"]
        assert match["off"] == pytest.approx(match["value"] / target - 1)
        if name == "plain":
            assert match["off"] == 0
            continue
        heads = config["model"]["heads"]
        every = [config | {"model": config["model"] | {"dim": width}} for width in range(heads, 80, heads)]
        best = min(abs(weight - target) for each in every if (weight := scales.measure(each, "params")) is not None)
        assert abs(match["value"] - target) == best, name


@pytest.mark.full
def test_flops_are_matched_too(tmp_path):
    sweep_plan = plan_from(tmp_path, f"{BASE}{ARMS}\nmatch: flops")
    record = sweep_plan.facts["match"]
    config = sweep_plan.variants["deep"].config
    model = Components(config).model(0).eval()
    import torch

    with torch.no_grad(), counter() as counted:
        model(torch.zeros(1, *Components(config).data.spec.shape))
    assert counted.get_total_flops() == record["arms"]["deep"]["value"]
    assert record["arms"]["deep"]["dim"] < 32
    assert abs(record["arms"]["deep"]["off"]) < 0.2
    assert any("forward FLOPs per sample" in note for note in sweep_plan.facts["notes"])


def test_widths_are_multiples_of_what_parts_need(tmp_path):
    """RoPE on images rotates quarters of a head's width."""
    sweep_plan = plan_from(
        tmp_path, f"{BASE}arms: {{plain: [position=none], rope: [position=rope, channel_mixer=glu]}}\nmatch: params"
    )
    assert sweep_plan.variants["rope"].config["model"]["dim"] % 8 == 0


def test_an_arm_that_cannot_be_built_says_so_itself(tmp_path):
    sweep_plan = plan_from(
        tmp_path, f"{BASE}arms: {{plain: [], bad: [token_mixer=fourier, position=rope]}}\nmatch: params"
    )
    (match,) = sweep_plan.refused
    assert match.reasons[0].startswith("position with token_mixer")


def test_no_arm_may_set_a_matched_width(tmp_path):
    assert (
        "no arm may set model.dim; remove it from wide"
        in refusals(tmp_path, f"{BASE}arms: {{a: [], wide: [model.dim=64]}}\nmatch: params")[0]
    )


def test_a_large_mismatch_is_noted(tmp_path):
    sweep_plan = plan_from(
        tmp_path, f"{BASE}arms: {{plain: [], coarse: [model.heads=32, model.depth=2]}}\nmatch: params"
    )
    wanted = "widths are multiples of the heads, here of 32, so some sizes differ much: coarse"
    assert any(wanted in note for note in sweep_plan.facts["notes"])


@pytest.mark.parametrize(
    "chosen", ["tune: {model.depth: [1, 2]}", "search: {trials: 2, space: {model.depth: {low: 1, high: 2, int: true}}}"]
)
def test_what_is_chosen_must_not_undo_the_match(tmp_path, chosen):
    arms = "arms: {plain: [], glu: [channel_mixer=glu]}\nmatch: params\n"
    (problem,) = refusals(tmp_path, f"{BASE}{arms}{chosen}")
    assert "it changes the parameters of plain" in problem
    assert len(plan_from(tmp_path, f"{BASE}{arms}tune: {{optimizer.lr: [1e-3, 3e-3]}}").variants) == 4


@pytest.mark.full
def test_states_are_matched(tmp_path):
    """Bytes of cache of linear attention, of a square in each head, and of all keys and values of attention."""
    text = (
        "claim: x\nbase: [experiment=recall, model.depth=2, model.dim=32, model.heads=2, logger=none]\n"
        "arms: {attention: [], linear: [token_mixer=linear_attention]}\nbaseline: attention\nmatch: state"
    )
    sizes = plan_from(tmp_path, text).facts["match"]["arms"]
    assert sizes["attention"]["value"] == 2 * 2 * 32 * 64 * 4
    assert sizes["linear"]["value"] == pytest.approx(32_768, rel=0.15)
    assert sizes["linear"]["dim"] > 32
    text = text.replace("{attention", "{conv: [token_mixer=pool], attention")
    (refused,) = plan_from(tmp_path, text).refused
    assert refused.arm == "conv"
    assert "Pool cannot decode from a cache" in refused.reasons[0]
