"""Arms: given, crossed, paired, one at a time, one left out; and what they are called."""

from __future__ import annotations

import re

import pytest

from blockyard.config.compose import compose
from blockyard.config.override_grammar import to_override
from blockyard.sweep.spec.arms import expand_arms


def arms(kind: str, body: object) -> dict[str, tuple[str, ...]]:
    problems: list[str] = []
    result = expand_arms(kind, body, problems)
    assert problems == []
    assert len({arm.name for arm in result}) == len(result)
    return {arm.name: arm.overrides for arm in result}


def test_a_grid_crosses():
    result = arms(
        "grid", {"block": ["pre_norm", "post_norm"], "optimizer.lr": [1e-3, 3e-3], "head.tied": [True, False]}
    )
    assert len(result) == 8
    assert result["pre_norm-lr0.001-tied_true"] == ("block=pre_norm", "optimizer.lr=0.001", "head.tied=true")
    assert next(iter(result)) == "pre_norm-lr0.001-tied_true"


def test_zip_pairs():
    result = arms("zip", {"model.depth": [1, 2], "model.dim": [64, 32]})
    assert result == {
        "depth1-dim64": ("model.depth=1", "model.dim=64"),
        "depth2-dim32": ("model.depth=2", "model.dim=32"),
    }


def test_one_at_a_time_leaves_the_reference():
    result = arms("one_at_a_time", {"block": ["pre_norm", "post_norm"], "norm": ["layer", "rms", "none"]})
    assert list(result) == ["reference", "post_norm", "rms", "norm_none"]
    assert result["reference"] == ("block=pre_norm", "norm=layer")
    assert result["post_norm"] == ("block=post_norm", "norm=layer")
    assert result["norm_none"] == ("block=pre_norm", "norm=none")


def test_leave_one_out():
    result = arms("leave_one_out", {"warmup": ["schedule.warmup=10"], "rms": ["norm=rms"], "deep": "model.depth=6"})
    assert result == {
        "full": ("schedule.warmup=10", "norm=rms", "model.depth=6"),
        "no_warmup": ("norm=rms", "model.depth=6"),
        "no_rms": ("schedule.warmup=10", "model.depth=6"),
        "no_deep": ("schedule.warmup=10", "norm=rms"),
    }


def test_named_levels_keep_their_names():
    body = {"rate": {"5e-4": ["optimizer.lr=5e-4"], "2e-3": ["optimizer.lr=2e-3"]}, "block": ["pre_norm"]}
    assert list(arms("grid", body)) == ["5e-4-pre_norm", "2e-3-pre_norm"]


def test_levels_know_their_factors():
    problems: list[str] = []
    result = expand_arms("grid", {"block": ["pre_norm"], "w": {"slim": ["model.dim=8"]}}, problems)
    assert result[0].levels == {"block": "pre_norm", "w": "slim"}


def test_equal_words_are_told_apart():
    assert next(iter(arms("grid", {"norm": ["none", "rms"], "position": ["none", "rms"]}))) == "norm_none-position_none"
    assert list(arms("one_at_a_time", {"a.lr": [1, 2], "b.lr": [1, 2]})) == ["reference", "lr2", "lr2.2"]


def test_names_are_fit_for_files():
    odd = [[], {}, {"../../a/b": 1}]
    body = {"x.y": ["a/b", "c d", "", "ü", [1, 2], {"k": 1}, None, -1, 1e-9, "../..", *odd], "z.z": ["A" * 300]}
    for name in arms("grid", body):
        assert re.fullmatch(r"[A-Za-z0-9_.+-]{1,100}", name), name
        assert name not in (".", "..")


def test_a_sign_is_part_of_a_name():
    assert list(arms("grid", {"a.shift": [1, -1, 1.2, -0.5]})) == ["shift1", "shift-1", "shift1.2", "shift-0.5"]


VALUES = [1, -1, 1.5, 1e-05, 3e20, True, False, None, "rope", "a b", "a,b", "it's", 'say "x"', "true", "12", "1e5"]
ODD = ["[x", "C:\\", "tail\\", "\\'", "", "$x", [1, 2], [], ["a,b", None], "na\u00efve", "a:b", "(x)", "a=b"]


@pytest.mark.parametrize("value", [*VALUES, *ODD])
def test_a_value_arrives_as_it_was_written(value):
    """Whatever a file holds is one override, and Hydra reads back the same value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    override = OverridesParser.create().parse_override(to_override("name", value))
    assert not override.is_sweep_override()
    assert override.value() == value
    assert type(override.value()) is type(value)


def test_a_level_can_be_a_mapping():
    override = to_override("model.prefix", {"class_token": True, "registers": 2})
    assert compose([override]).config["model"]["prefix"] == {"class_token": True, "registers": 2}
