"""Orders of blocks, streams, carried values, parametrizations and experts: in a grid, tuned, searched and matched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.config.tree import get
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.search.trial_config import arm_template
from tests.sweep.spec_plans import plan_from

BASE = """
claim: layers differ
base: [experiment=gpt_code_small, position=rope, model.dim=16, model.depth=4, {more}]
seeds: 1
metric: test/bits_per_byte
"""
# A key, two of its values, and what the base has to have for it.
KEYS: dict[str, tuple[list[Any], str]] = {
    "model.order": ([[0, 1, 2, 3], [0, 1, 2, 1, 2, 3]], ""),
    "residual": (["add", "unet"], ""),
    "layers": (["same", "no_positions"], ""),
    "residual.streams": ([2, 4], "residual=hyper"),
    "token_mixer.value_residual": (["mixed", "learned"], ""),
    "token_mixer.kv_every": ([1, 2], ""),
    "parametrization": (["standard", "mup"], ""),
    "parametrization.output": ([0.5, 2.0], "parametrization=mup"),
    "optimizer.rates.embedder": ([0.5, 2.0], ""),
    "channel_mixer.active": ([1, 3], "channel_mixer=experts"),
    "channel_mixer.balance": (["loss", "bias"], "channel_mixer=experts"),
}
# Choices that a config leaves out because they are the defaults.
LEFT_OUT = {"residual": "add", "layers": "same", "parametrization": "standard"}


def base_of(key: str) -> str:
    """The base of a question about this key."""
    return BASE.replace(", {more}", f", {KEYS[key][1]}" if KEYS[key][1] else "")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.sampled(2)
def test_in_a_grid_and_tuned(tmp_path: Path, key: str) -> None:
    """Each value makes another model, and both forms make the same ones."""
    values, _ = KEYS[key]
    grid = plan_from(tmp_path, f"{base_of(key)}grid:\n  {key}: {values}\n").variants.values()
    arms = f"baseline: a\narms: {{a: []}}\ntune: {{{key}: {values}}}\n"
    tuned = plan_from(tmp_path, base_of(key) + arms, name="tuned").variants.values()
    assert len({variant.key for variant in grid}) == 2
    assert [get(variant.config, key, None) for variant in tuned] == [get(variant.config, key, None) for variant in grid]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.sampled(2)
def test_searched(tmp_path: Path, key: str) -> None:
    """A space of these values is accepted, and a trial has the value that it draws."""
    values, _ = KEYS[key]
    search = f"baseline: a\narms: {{a: []}}\nsearch: {{trials: 2, space: {{{key}: {values}}}}}\n"
    template = arm_template(plan_from(tmp_path, base_of(key) + search), "a", CellComposer())
    assert template is not None
    for value in values:
        config, choices, problems = template.config({key: value}, 0)
        assert not problems
        assert value == (get(config, key) if "." in key else choices.get(key, LEFT_OUT.get(key)))


@pytest.mark.sampled(100)
@pytest.mark.parametrize("what", ["params", "flops"])
def test_loops_are_matched(tmp_path: Path, what: str) -> None:
    """At equal parameters a looped model is as wide, and computes more; at equal FLOPs it is narrower."""
    arms = 'baseline: once\narms: {once: [], looped: ["model.order=[0,1,2,3,0,1,2,3]"]}\n'
    plan = plan_from(
        tmp_path, BASE.replace("model.dim=16", "model.dim=64").replace(", {more}", "") + arms + f"match: {what}\n"
    )
    widths = {name: variant.config["model"]["dim"] for name, variant in plan.variants.items()}
    assert abs(plan.facts["match"]["arms"]["looped"]["off"]) < 0.2  # widths are multiples of eight
    assert (widths["looped"] < widths["once"]) == (what == "flops")
