"""The choices of a config as rules see them, and choices that a rule accepts in place of one that it refuses."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from blockyard.atomic_files import stamp
from blockyard.config.choices import catalog
from blockyard.config.defaults import complete
from blockyard.config.instantiate import settings
from blockyard.config.rules import RULES, Facts, Pick, Rule
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allow_of, allowed, locate


def alternatives(
    rule: Rule,
    facts: Facts,
    folders: tuple[Path, ...],
    allow: Sequence[str],
    typed: frozenset[str],
) -> list[str]:
    """Return overrides `family=name` that a rule accepts in place of one of the two choices that it refuses.

    Overrides that no other rule refuses are returned alone, where there are any; the rest would need further ones.
    First are choices that experiments use with the other choice, then the nearest; where both families vary, they
    alternate.

    typed: families with a choice on the command line: the other family varies where it can, and typed data never does
    """
    free = [family for family in rule.pair if family not in typed]
    rest = [family for family in rule.pair if family in typed and family != "data"]
    instead_of_free = _accepted(free, rule, facts, folders, allow)
    instead_of_typed = _accepted(rest, rule, facts, folders, allow)
    alone = instead_of_free.alone or instead_of_typed.alone
    return alone or instead_of_free.with_others or instead_of_typed.with_others


def picks(config: Node, choices: Mapping[str, str | None], families: Sequence[str]) -> dict[str, Pick]:
    """Return the choices of families as rules see them; families without a node are left out.

    A family with a node inside that cannot be built is left out too. The build of the whole reports it.
    """
    result = {}
    for family in families:
        node = config.get(family)
        if is_node(node):
            name = choices.get(family) or node["_target_"]
            with suppress(ValueError):
                result[family] = _pick(family, str(name), node, allow_of(config))
    return result


def refusal(rule: Rule, facts: Facts) -> str | None:
    """Return the reason why a rule refuses, or None.

    Also None where a family that the rule needs is missing or unsound, or a shape is not compatible. The check reports
    these elsewhere.
    """
    try:
        return rule.reason(facts)
    except (KeyError, ValueError):
        return None


def default_pick(choice: catalog.Choice, allow: Sequence[str] = ()) -> Pick | None:
    """Return a choice with the options of its YAML; None where it needs more, or its package is not allowed."""
    if not choice.target or not allowed(choice.target, list(allow)):
        return None
    if choice.target.startswith("blockyard."):  # other classes may be loaded again
        return _package_pick(choice, stamp(choice.path))
    return _read_pick(choice, allow)


@lru_cache(maxsize=1024)
def _package_pick(choice: catalog.Choice, _stamp: tuple[int, ...]) -> Pick | None:
    """Return a choice of the package, made again only after its YAML has changed."""
    return _read_pick(choice, ())


def _read_pick(choice: catalog.Choice, allow: Sequence[str]) -> Pick | None:
    node = catalog.content(choice.path) or {}
    try:
        complete({choice.family: node, "allow": list(allow)})
        return _pick(choice.family, choice.name, node, list(allow))
    except (KeyError, ValueError):
        return None


def _pick(family: str, name: str, node: Node, allow: list[str]) -> Pick:
    with torch.device("meta"):  # a module among the options
        options = settings(node, allow)
    return Pick(family, name, locate(node["_target_"]), options)


class _Accepted(NamedTuple):
    """Overrides that a rule accepts: the ones that need no further override, and all."""

    alone: list[str]
    with_others: list[str]


def _accepted(
    families: Sequence[str], rule: Rule, facts: Facts, folders: tuple[Path, ...], allow: Sequence[str]
) -> _Accepted:
    """Return the overrides of some families of a rule that it accepts, the best first, in turns of the families."""
    satisfied = [rule for rule in RULES if not refusal(rule, facts)]
    alone: list[list[str]] = []
    with_others: list[list[str]] = []
    for family in families:
        alone.append([])
        with_others.append([])
        group = catalog.OF_SOURCE.get(family, family)
        present = facts[family]
        if present.name == catalog.SAME:
            present = facts[group]
        (other,) = set(rule.pair) - {family}
        for choice in _best_first(group, present.name, catalog.choices(family, folders), str(facts[other])):
            if choice.name == facts[family].name:
                continue
            pick = default_pick(choice, allow)
            if pick is None or not _accepts(rule, facts, family, pick):
                continue
            with_others[-1].append(str(pick))
            swapped = facts.swapped(pick)
            if not any(refusal(other_rule, swapped) for other_rule in satisfied):
                alone[-1].append(str(pick))
    return _Accepted(_alternating(alone), _alternating(with_others))


def _accepts(rule: Rule, facts: Facts, family: str, pick: Pick) -> bool:
    """Return whether a rule accepts a choice in place of a family's own, with its defaults and with present options.

    An experiment may set options of the refused choice, and the other one then has them too. Options of data sets and
    tokenizers mean something else in each.
    """
    kept_options = dict(pick.options)
    if family not in ("data", "tokenizer"):
        for name, value in facts[family].options.items():
            if name in kept_options:
                kept_options[name] = value
    kept = replace(pick, options=kept_options)
    try:
        return rule.reason(facts.swapped(pick)) is None and rule.reason(facts.swapped(kept)) is None
    except (KeyError, ValueError):
        return False


def _best_first(family: str, name: str, choices: dict[str, catalog.Choice], other: str) -> list[catalog.Choice]:
    """Return choices in order: used by experiments with `other`, the default, the others by likeness to `name`."""
    default = catalog.default_choices().get(family)
    together = Counter[str]()  # experiments with `other` and each further choice
    for experiment in catalog.choices("experiment").values():
        if other in experiment.chosen:
            together.update(experiment.chosen)

    def distance(choice: catalog.Choice) -> tuple[int, bool, float]:
        likeness = difflib.SequenceMatcher(None, name, choice.name).ratio()
        return -together[f"{family}={choice.name}"], choice.name != default, -likeness

    return sorted(choices.values(), key=distance)


def _alternating(lists: Sequence[list[str]]) -> list[str]:
    """Return the first of each list, then the second of each, and so on."""
    result = []
    for index in range(max(map(len, lists), default=0)):
        for names in lists:
            if index < len(names):
                result.append(names[index])
    return result
