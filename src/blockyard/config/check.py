"""Reports all problems of a config together, before anything is built or read.

Four passes, each over what the earlier ones found sound: targets (may this be named at all), values (does each fit
its signature), combinations (`rules`), and construction (`trial_build`: every component on the meta device, where a
constructor can object but nothing is allocated).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blockyard.config import catalog, lightning, tree
from blockyard.config.alternatives import alternatives, picks, refusal
from blockyard.config.build import CONTRACTS, LATE, contract
from blockyard.config.compose import Composed
from blockyard.config.nested_choices import unknown_names
from blockyard.config.rules import RULES, Facts, Rule
from blockyard.config.schema import REQUIRED, RESERVED, Root, factories, named_factories, options
from blockyard.config.targets import TRUSTED_PACKAGES, allowed, locate
from blockyard.config.trial_build import build_components, build_model
from blockyard.contracts import Issue
from blockyard.errors import fold, near


def check(composed: Composed, *, on_this_machine: bool = True) -> list[Issue]:
    """Every problem of a composed config, those of composing it included.

    on_this_machine: False where the run is for another one, so that a missing GPU is not an issue
    """
    config = composed.config if on_this_machine else _on_any_device(composed.config)
    issues = list(composed.issues)
    if not config:
        return issues
    allow = list(config.get("allow") or [])
    issues += _root(config)
    unsound = set()
    nodes = dict(tree.nodes(config))
    for key, node in nodes.items():
        of_node = [*_target(key, node, nodes, allow)] or [*_values(key, node)]
        issues += of_node
        unsound |= {key.partition(".")[0]} if of_node else set()
    for issue in unknown_names(config, composed.folders):
        issues.append(issue)
        unsound.add(issue.key.partition(".")[0])
    issues += _families(config)
    facts = Facts(picks(replace(composed, config=config), [family for family in CONTRACTS if family not in unsound]))
    combinations = list(_combinations(composed, facts, allow))
    issues += [issue for _, issue in combinations]
    # The constructor of a component that a rule refused would only repeat the reason.
    refused = {family for rule, _ in combinations for family in rule.pair}
    issues += build_components(config, facts, refused)
    issues += [] if issues else build_model(config)
    return list({str(issue): issue for issue in issues}.values())


def reasons(composed: Composed, *, on_this_machine: bool = True) -> list[str]:
    """Why a config cannot run, one text a problem; empty where it can."""
    return [str(issue) for issue in check(composed, on_this_machine=on_this_machine)]


def _on_any_device(config: dict[str, Any]) -> dict[str, Any]:
    trainer = config.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("accelerator") != "gpu":
        return config
    return config | {"trainer": trainer | {"accelerator": "auto"}}


def _root(config: dict[str, Any]) -> Iterator[Issue]:
    root_options = options(Root)
    for key, value in config.items():
        if key in root_options:
            problem = root_options[key].problem(value)
            if problem:
                yield Issue(key, f"invalid value {value!r}: {problem}")
        elif key not in catalog.families():
            yield Issue(key, "unknown config key", near(key, [*root_options, *catalog.families()]))


def _families(config: dict[str, Any]) -> Iterator[Issue]:
    for family in CONTRACTS:
        node = config.get(family)
        if not tree.is_node(node):
            yield Issue(family, f"{node!r} is not a {family}", see=f"`blockyard list {family}`")


def _target(key: str, node: dict[str, Any], nodes: dict[str, dict[str, Any]], allow: list[str]) -> Iterator[Issue]:
    target = str(node["_target_"])
    if not allowed(target, allow):
        package = target.split(".")[0]
        text = f"{target} is not in an allowed package ({', '.join(TRUSTED_PACKAGES)})"
        yield Issue(f"{key}._target_", text, [f"allow=[{package}] for a package of your own"])
        return
    try:
        located = locate(target)
    except ValueError as error:
        yield Issue(f"{key}._target_", str(error))
        return
    required, late = _required(key, nodes, allow)
    family = key.partition(".")[0]
    if lightning.is_lightning(family, located):
        reason = lightning.refusal(located) if family == "callbacks" else None
        if reason:
            yield Issue(f"{key}._target_", reason)
    elif not issubclass(located, required):
        yield Issue(f"{key}._target_", f"{target} is not a {required.__name__}")
    elif bool(node.get("_partial_")) != late:
        yield Issue(
            f"{key}._partial_", "must be true for what is built from a Context, and false elsewhere", [str(late)]
        )


def _required(key: str, nodes: dict[str, dict[str, Any]], allow: list[str]) -> tuple[type, bool]:
    """The class that a node must have, and whether it waits for a Context. Inside a component its option says so."""
    parent, _, name = key.rpartition(".")
    grandparent, _, group = parent.rpartition(".")
    for holder, option, read in ((parent, name, factories), (grandparent, group, named_factories)):
        node = nodes.get(holder)
        if node is not None and allowed(str(node["_target_"]), allow):
            try:
                required = read(options(locate(str(node["_target_"])))[option].annotation)
            except (KeyError, ValueError):
                required = None  # reported elsewhere
            if required is not None:
                return required, True
    return contract(key), key in LATE


def _values(key: str, node: dict[str, Any]) -> Iterator[Issue]:
    declared = options(locate(node["_target_"]))
    for name, value in node.items():
        if name in RESERVED or tree.is_node(value):
            continue
        if name not in declared:
            has = f"it has {fold(list(declared))}" if declared else "it has none"
            hints = [f"{key}.{each}" for each in near(name, declared)]
            yield Issue(f"{key}.{name}", f"{node['_target_']} has no option {name!r}; {has}", hints)
            continue
        if named_factories(declared[name].annotation) and isinstance(value, dict):
            named = [each for each in value if tree.is_node(value[each])]
            for each in (each for each in value if each not in named):
                yield Issue(
                    f"{key}.{name}.{each}", "is not a node, and no choice of that name is used", near(each, named)
                )
            continue
        problem = declared[name].problem(value)
        if problem:
            yield Issue(f"{key}.{name}", f"invalid value {value!r}: {problem}")
    for name, option in declared.items():
        if option.default is REQUIRED and node.get(name) is None and name not in node:
            yield Issue(f"{key}.{name}", f"is required: {option.describe()}", [f"{key}.{name}=..."])


def _combinations(composed: Composed, facts: Facts, allow: list[str]) -> Iterator[tuple[Rule, Issue]]:
    for rule in RULES:
        reason = refusal(rule, facts)
        if reason:
            first, second = rule.pair
            see = f"`blockyard list {first} {second} --compatible` with the same overrides"
            works = alternatives(rule, facts, composed.folders, allow)
            yield rule, Issue(f"{first} with {second}", reason, works, see)
