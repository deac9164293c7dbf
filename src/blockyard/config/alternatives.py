"""Choices that rules accept in place of one that they refuse."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from blockyard.config import catalog
from blockyard.config.compose import Composed, complete
from blockyard.config.instantiate import settings
from blockyard.config.rules import RULES, Facts, Pick, Rule
from blockyard.config.targets import allow_of, allowed, locate


def picks(composed: Composed, families: Sequence[str]) -> dict[str, Pick]:
    """The choices of families as rules see them; families without a node are left out."""
    result = {}
    for family in families:
        node = composed.config.get(family)
        if isinstance(node, dict) and "_target_" in node:
            name = composed.choices.get(family) or node["_target_"]
            result[family] = _pick(family, str(name), node, allow_of(composed.config))
    return result


def refusal(rule: Rule, facts: Facts) -> str | None:
    """The reason why a rule refuses, or None; also None where a family that the rule needs is missing or unsound."""
    try:
        return rule.reason(facts)
    except (KeyError, ValueError):
        return None  # reported elsewhere: an unsound node, or an incompatible shape


def alternatives(rule: Rule, facts: Facts, folders: tuple[Path, ...] = (), allow: Sequence[str] = ()) -> list[str]:
    """Overrides `family=name` that a rule accepts in place of one of the two choices that it refuses.

    Only those that no other rule refuses, where there are any; the rest would need further overrides. The two
    families alternate, the nearest choices of each first.
    """
    refusing = _refusing(facts)
    by_family: list[list[tuple[str, bool]]] = []
    for family in rule.pair:
        accepted = []
        own = catalog.OF_SOURCE.get(family, family)
        wanted = facts[family].name if facts[family].name != catalog.SAME else facts[own].name
        for choice in _nearest_first(own, wanted, catalog.choices(family, folders)):
            pick = default_pick(choice, allow) if choice.name != facts[family].name else None
            if pick is None:
                continue
            swapped = facts.swapped(pick)
            try:
                if rule.reason(swapped) is None:
                    accepted.append((str(pick), _refusing(swapped) <= refusing))
            except (KeyError, ValueError):
                continue
        by_family.append(accepted)
    complete_ones = [[override for override, alone in accepted if alone] for accepted in by_family]
    return _alternating(complete_ones) or _alternating([[each for each, _ in accepted] for accepted in by_family])


def default_pick(choice: catalog.Choice, allow: Sequence[str] = ()) -> Pick | None:
    """A choice with the options of its YAML; None where it needs more, or its package is not allowed."""
    if not choice.target or not allowed(choice.target, list(allow)):
        return None
    if choice.target.startswith("blockyard."):  # other classes may be loaded again
        return _own_pick(choice, catalog.stamp(choice.path))
    return _read_pick(choice, allow)


@lru_cache(maxsize=1024)
def _own_pick(choice: catalog.Choice, _stamp: tuple[int, ...]) -> Pick | None:
    """A choice of the package, made again only after its YAML has changed."""
    return _read_pick(choice, ())


def _read_pick(choice: catalog.Choice, allow: Sequence[str]) -> Pick | None:
    node = catalog.content(choice.path) or {}
    try:
        complete({choice.family: node, "allow": list(allow)})
        return _pick(choice.family, choice.name, node, list(allow))
    except (KeyError, ValueError):
        return None


def _pick(family: str, name: str, node: dict[str, Any], allow: list[str]) -> Pick:
    with torch.device("meta"):  # a module among the options
        options = settings(node, allow)
    return Pick(family, name, locate(node["_target_"]), options)


def _refusing(facts: Facts) -> set[str]:
    """The names of the rules that refuse."""
    return {rule.reason.__name__ for rule in RULES if refusal(rule, facts)}


def _nearest_first(family: str, name: str, choices: dict[str, catalog.Choice]) -> list[catalog.Choice]:
    """The family's default, then the choices whose names are most like `name`."""
    default = catalog.default_choices().get(family)
    likeness = {other: difflib.SequenceMatcher(None, name, other).ratio() for other in choices}
    return sorted(choices.values(), key=lambda choice: (choice.name != default, -likeness[choice.name]))


def _alternating(lists: Sequence[list[str]]) -> list[str]:
    longest = max(map(len, lists))
    return [names[index] for index in range(longest) for names in lists if index < len(names)]
