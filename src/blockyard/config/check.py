"""Every problem of a config at once, before anything is built or read.

Four passes, each over what the earlier ones found sound: targets (may this be named at all),
values (does each fit its signature), combinations (`rules`), and shapes (each component is
constructed on the meta device, where a constructor can object but nothing is allocated).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blockyard.config import catalog
from blockyard.config.build import CONTRACTS, LATE, contract, settings
from blockyard.config.compose import Composed, complete
from blockyard.config.nested_choices import unknown_names
from blockyard.config.overrides import nodes
from blockyard.config.rules import RULES, Facts, Pick, Rule
from blockyard.config.schema import OURS, REQUIRED, RESERVED, Root, allowed, factories, locate, named_factories, options
from blockyard.config.trial_build import shapes, weights
from blockyard.contracts import Issue
from blockyard.errors import near


def check(composed: Composed) -> list[Issue]:
    """Every problem of a composed config, those of composing it included."""
    config = composed.config
    issues = list(composed.issues)
    if not config:
        return issues
    issues += _root(config)
    unsound = set()
    for key, node in nodes(config):
        found = [*_target(key, node, config)] or [*_values(key, node)]
        issues += found
        unsound |= {key.partition(".")[0]} if found else set()
    for issue in unknown_names(config, composed.folders):
        issues.append(issue)
        unsound.add(issue.key.partition(".")[0])
    issues += _families(config)
    facts = Facts(picks(composed, unsound))
    combinations = list(_combinations(facts, composed.folders, list(config.get("allow") or [])))
    issues += [issue for _, issue in combinations]
    # A component that a rule refused would only say the same again in its constructor.
    refused = {family for rule, _ in combinations for family in rule.pair}
    issues += shapes(config, facts, refused)
    issues += [] if issues else weights(config)
    return list({str(issue): issue for issue in issues}.values())


def _root(config: dict[str, Any]) -> Iterator[Issue]:
    known = options(Root)
    for key, value in config.items():
        if key in known:
            problem = known[key].problem(value)
            if problem:
                yield Issue(key, f"{value!r} does not fit: {problem}")
        elif key not in catalog.families():
            yield Issue(key, "nothing reads this key", near(key, [*known, *catalog.families()]))


def _families(config: dict[str, Any]) -> Iterator[Issue]:
    for family in CONTRACTS:
        node = config.get(family)
        if not isinstance(node, dict) or "_target_" not in node:
            yield Issue(family, f"{node!r} is no choice", list(catalog.choices(family)))


def _target(key: str, node: dict[str, Any], config: dict[str, Any]) -> Iterator[Issue]:
    target = str(node["_target_"])
    if not allowed(target, list(config.get("allow") or [])):
        package = target.split(".")[0]
        yield Issue(f"{key}._target_", f"{target} is of no allowed package", [*OURS, f"allow=[{package}] for your own"])
        return
    try:
        found = locate(target)
    except ValueError as error:
        yield Issue(f"{key}._target_", str(error))
        return
    promised, late = _promised(key, config)
    if not issubclass(found, promised):
        yield Issue(f"{key}._target_", f"{target} is no {promised.__name__}")
    elif bool(node.get("_partial_")) != late:
        yield Issue(f"{key}._partial_", "is true for what is built from a Context, and for nothing else", [str(late)])


def _promised(key: str, config: dict[str, Any]) -> tuple[type, bool]:
    """What the class of a node must be, and whether it waits for a Context: inside a component its option says so."""
    held, _, name = key.rpartition(".")
    above, _, group = held.rpartition(".")
    everything = dict(nodes(config))
    for parent, option, takes in ((held, name, factories), (above, group, named_factories)):
        node = everything.get(parent)
        if node is not None and allowed(str(node["_target_"]), list(config.get("allow") or [])):
            try:
                made = takes(options(locate(str(node["_target_"])))[option].annotation)
            except (KeyError, ValueError):
                made = None  # reported elsewhere
            if made is not None:
                return made, True
    return contract(key), key in LATE


def _values(key: str, node: dict[str, Any]) -> Iterator[Issue]:
    known = options(locate(node["_target_"]))
    for name, value in node.items():
        if name in RESERVED or (isinstance(value, dict) and "_target_" in value):
            continue
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            yield Issue(f"{key}.{name}", f"{node['_target_']} has no such option; {has}", near(name, known))
            continue
        if named_factories(known[name].annotation) and isinstance(value, dict):
            nodes_of = [each for each in value if isinstance(value[each], dict) and "_target_" in value[each]]
            for each in (each for each in value if each not in nodes_of):
                yield Issue(
                    f"{key}.{name}.{each}", "is no node, and nothing of that name is drawn", near(each, nodes_of)
                )
            continue
        problem = known[name].problem(value)
        if problem:
            yield Issue(f"{key}.{name}", f"{value!r} does not fit: {problem}")
    for name, option in known.items():
        if option.default is REQUIRED and node.get(name) is None and name not in node:
            yield Issue(f"{key}.{name}", f"has no default; give it: {option.describe()}", [f"{key}.{name}=..."])


def picks(composed: Composed, unsound: set[str]) -> dict[str, Pick]:
    """The sound choices of the families that rules know."""
    picks = {}
    for family in CONTRACTS:
        node = composed.config.get(family)
        if family not in unsound and isinstance(node, dict) and "_target_" in node:
            name = composed.choices.get(family) or node["_target_"]
            picks[family] = _pick(family, str(name), node, list(composed.config.get("allow") or []))
    return picks


def _pick(family: str, name: str, node: dict[str, Any], allow: list[str]) -> Pick:
    return Pick(family, name, locate(node["_target_"]), settings(node, allow))


def _combinations(facts: Facts, folders: tuple[Path, ...], allow: list[str]) -> Iterator[tuple[Rule, Issue]]:
    for rule in RULES:
        reason = judge(rule, facts)
        if reason:
            first, second = rule.pair
            yield rule, Issue(f"{first} with {second}", reason, alternatives(rule, facts, folders, allow))


def judge(rule: Rule, facts: Facts) -> str | None:
    """The reason why a rule refuses, or None; also where a part of the question is missing."""
    try:
        return rule.reason(facts)
    except (KeyError, ValueError):
        return None  # reported elsewhere: an unsound node, or a shape that does not fit


def alternatives(rule: Rule, facts: Facts, folders: tuple[Path, ...] = (), allow: Sequence[str] = ()) -> list[str]:
    """Words `family=choice` that a rule accepts in place of one of the two that it refuses.

    Those that no other rule refuses as they stand, where there are any: the rest would need more words.
    """
    broken, found = _broken(facts), {}
    for family in rule.pair:
        for choice in catalog.choices(family, folders).values():
            pick = default_pick(choice, allow) if choice.name != facts[family].name else None
            if pick is None:
                continue
            swapped = facts.swapped(pick)
            try:
                if rule.reason(swapped) is None:
                    found[str(pick)] = _broken(swapped) <= broken
            except (KeyError, ValueError):
                continue
    return [word for word, sound in found.items() if sound] or list(found)


def _broken(facts: Facts) -> set[str]:
    """The rules that refuse, by name."""
    return {rule.reason.__name__ for rule in RULES if judge(rule, facts)}


def default_pick(choice: catalog.Choice, allow: Sequence[str] = ()) -> Pick | None:
    """A choice as its YAML gives it, or None where it cannot stand alone or is of a package not allowed."""
    if not choice.target or not allowed(choice.target, list(allow)):
        return None
    node = catalog.content(choice.path) or {}
    try:
        complete({choice.family: node, "allow": list(allow)})
        return _pick(choice.family, choice.name, node, list(allow))
    except (KeyError, ValueError):
        return None
