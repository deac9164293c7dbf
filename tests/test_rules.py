"""Every rule that is written is asked, once, about families that exist."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from blockyard import rules
from blockyard.assemble import CONTRACTS


def test_every_rule_is_asked() -> None:
    written = set()
    for found in pkgutil.iter_modules(rules.__path__):
        module = importlib.import_module(f"blockyard.rules.{found.name}")
        if hasattr(module, "RULES"):
            named = inspect.getmembers(module, inspect.isfunction)
            written |= {each for name, each in named if each.__module__ == module.__name__ and name[0] != "_"}
    asked = [rule.reason for rule in rules.RULES]
    assert len(asked) == len(set(asked)) > 30
    assert set(asked) == written
    assert {family for rule in rules.RULES for family in rule.pair} <= set(CONTRACTS)
