"""Every rule that is written is asked, once, about families that exist."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

from blockyard.config import rules
from blockyard.config.build import CONTRACTS, SOURCE_CONTRACTS
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.position.xpos import XPos
from tests.support.helpers import choices, node


def test_every_rule_is_asked() -> None:
    written = set()
    for info in pkgutil.iter_modules(rules.__path__):
        module = importlib.import_module(f"blockyard.config.rules.{info.name}")
        if hasattr(module, "RULES"):
            named = inspect.getmembers(module, inspect.isfunction)
            written |= {each for name, each in named if each.__module__ == module.__name__ and name[0] != "_"}
    reasons = [rule.reason for rule in rules.RULES]
    assert len(reasons) == len(set(reasons)) > 30
    assert set(map(inspect.unwrap, reasons)) == written
    assert {family for rule in rules.RULES for family in rule.pair} <= {*CONTRACTS, *SOURCE_CONTRACTS}


@pytest.mark.parametrize(
    ("overrides", "who"),
    [
        ("experiment=vit_digits", "model=encoder"),
        ("experiment=bert_code", "model=encoder"),
        ("experiment=translate_dates", "the encoder of model=encoder_decoder"),
        ("experiment=gpt_code_small", None),
    ],
)
def test_a_scheme_for_one_direction_is_refused_where_a_model_looks_both_ways(overrides: str, who: str | None) -> None:
    one_way = [name for name in choices("position") if node("position", name)[0].needs_causal]
    assert one_way == ["fire", "xpos"]
    for name in (*one_way, "rope", "sinusoidal"):
        issues = check(compose([*overrides.split(), f"position={name}"]))
        matching = [issue for issue in issues if f"position={name} needs a causal model" in str(issue)]
        refused = name in one_way and who is not None
        assert len(matching) == refused
        if refused:
            assert f"position={name} needs a causal model; {who} is bidirectional" in str(matching[0])
            assert {"model=decoder", "position=rope", "source_position=rope"} & set(matching[0].legal)


def test_a_scheme_that_does_not_say_so_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(XPos, "needs_causal", False)
    assert check(compose(["experiment=vit_digits", "position=xpos"])) == []
