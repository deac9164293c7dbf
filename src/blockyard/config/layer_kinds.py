"""The kinds of layers in a config: overrides of parts, composed to nodes.

`layers.kinds.far=[position=none]` is composed as the config's own command line with `position=none` behind it, in the
families in which layers may differ. A kind keeps the nodes that differ from the config's own. One override may be
written by its key as well: `layers.kinds.far.token_mixer.window=64`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path

from blockyard.config.choices import catalog
from blockyard.config.defaults import whole_node
from blockyard.config.overrides import OverrideValue, SortedOverrides, sort_overrides
from blockyard.config.tree import Node, get, is_node
from blockyard.contracts import Issue, Kind
from blockyard.errors import near, quoted
from blockyard.layers.pattern import Pattern

FAMILY = "layers"
KINDS = f"{FAMILY}.kinds"
TARGET = f"{Kind.__module__.partition('.builders')[0]}.{Kind.__name__}"
# The families in which layers may differ.
FAMILIES = tuple(field.name for field in fields(Kind))

# From the overrides of a command line to its complete config.
Composes = Callable[[SortedOverrides, list[Issue]], Node]


def unexpanded(config: Node) -> list[str]:
    """Return the names of the kinds that are still lists of overrides."""
    kinds = get(config, KINDS, {})
    if not isinstance(kinds, dict):
        return []
    return [name for name, kind in kinds.items() if isinstance(kind, list)]


def split(values: list[OverrideValue]) -> tuple[list[OverrideValue], dict[str, list[str]]]:
    """Return the values of a command line outside kinds, and the values inside as overrides by kind."""
    rest: list[OverrideValue] = []
    typed: dict[str, list[str]] = {}
    for value in values:
        kind, _, inner = value.key.removeprefix(f"{KINDS}.").partition(".")
        if value.key.startswith(f"{KINDS}.") and inner:
            typed.setdefault(kind, []).append(f"{inner}={value.text}")
        else:
            rest.append(value)
    return rest, typed


def expand(
    config: Node,
    typed: Mapping[str, list[str]],
    ordered: SortedOverrides,
    folders: tuple[Path, ...],
    issues: list[Issue],
    composes: Composes,
) -> None:
    """Put the nodes of every kind into the config, in place of its overrides.

    typed: overrides by kind that stand behind the lists in the config
    ordered: the overrides of the command line
    composes: the complete config of sorted overrides
    """
    node = config.get(FAMILY)
    kinds = node.get("kinds") if is_node(node) else None
    if not is_node(node) or not (kinds or typed):
        return
    if kinds is not None and not isinstance(kinds, dict):
        return  # `check` says what is wrong
    kinds = dict(kinds) if kinds else {}
    own: Node | None = None  # composed for the first kind, if there is one
    for name in dict.fromkeys((*kinds, *typed)):
        overrides = kinds.get(name, [])
        if is_node(overrides):
            continue
        kinds[name] = {"_target_": TARGET}
        key = f"{KINDS}.{name}"
        if not isinstance(overrides, list) or not all(isinstance(text, str) for text in overrides):
            text = f"invalid value {quoted(overrides)}: expected a list of overrides"
            issues.append(Issue(key, text, [f"{key}=[token_mixer=conv]"]))
            continue
        if own is None:
            own = composes(SortedOverrides(ordered.groups, ordered.values), [])
        kinds[name] |= _nodes(key, [*overrides, *typed.get(name, [])], own, ordered, folders, issues, composes)
    config[FAMILY] = {**node, "kinds": kinds}


def _nodes(
    key: str,
    overrides: list[str],
    own: Node,
    ordered: SortedOverrides,
    folders: tuple[Path, ...],
    issues: list[Issue],
    composes: Composes,
) -> Node:
    """Return the nodes by family that a kind has of its own."""
    problems: list[Issue] = []
    wanted = sort_overrides(overrides, folders, problems)
    changed = [*wanted.groups, *(value.key for value in wanted.values)]
    for override in changed:
        family = _family(override)
        if family not in FAMILIES:
            text = f"layers cannot differ in {family}; a kind takes overrides of {', '.join(FAMILIES)}"
            problems.append(Issue(override.partition("=")[0], text, near(family, FAMILIES)))
    if problems:
        issues.extend(replace(issue, key=f"{key}: {issue.key}") for issue in problems)
        return {}
    chosen = {_family(group): group for group in wanted.groups}
    replaced = [family for family, group in chosen.items() if group not in ordered.groups]
    kept = [value for value in ordered.values if _family(value.key) not in (FAMILY, *replaced)]
    groups = [group for group in ordered.groups if _family(group) not in (FAMILY, *chosen)]
    composing: list[Issue] = []
    config = composes(SortedOverrides([*groups, *chosen.values()], [*kept, *wanted.values]), composing)
    # An issue outside the families of layers, or of the config's own layers, is reported once for the whole config.
    inside = [issue for issue in composing if _family(issue.key) in FAMILIES and issue not in issues]
    issues.extend(replace(issue, key=f"{key}: {issue.key}") for issue in inside)
    return {family: config[family] for family in FAMILIES if family in config and config[family] != own.get(family)}


def _family(override: str) -> str:
    return override.partition("=")[0].partition(".")[0]


def nodes_of_kinds(config: Node) -> dict[str, dict[str, Node]]:
    """Return the nodes of each kind by family, from a config with composed kinds."""
    kinds = get(config, KINDS, None)
    if not isinstance(kinds, dict):
        return {}
    nodes: dict[str, dict[str, Node]] = {}
    for name, node in kinds.items():
        if is_node(node):
            nodes[str(name)] = {family: node[family] for family in FAMILIES if is_node(node.get(family))}
    return nodes


def nodes_of_layers(config: Node, depth: int) -> list[dict[str, Node]]:
    """Return the nodes of each layer by family. Raises ValueError where the pattern does not fit the depth."""
    own: dict[str, Node] = {family: config[family] for family in FAMILIES if is_node(config.get(family))}
    kinds = nodes_of_kinds(config)
    if not kinds:
        return [own] * depth
    node: Node = config[FAMILY]
    names = {option: tuple(node.get(option) or ()) for option in ("pattern", "first", "last")}
    return [own | kinds.get(name, {}) for name in Pattern(**names, kinds=dict.fromkeys(kinds, Kind())).names(depth)]


def choice_name(node: Node, choices: Mapping[str, catalog.Choice]) -> str:
    """Return the name of the choice with a node's class, or the name of the class where no choice has it."""
    target = str(node["_target_"])
    return next((name for name, choice in choices.items() if choice.target == target), target.rpartition(".")[2])


def described(config: Node, kind: str, choices: Mapping[str, str | None]) -> dict[str, str]:
    """Return the choice of each family in the layers of a kind, with the options that differ.

    Options are compared with the config's own, or with the defaults of the choice where the kind has another one.
    """
    nodes = nodes_of_kinds(config).get(kind, {})
    texts = {}
    for family in FAMILIES:
        own: Node = config[family]
        node: Node = nodes.get(family, own)
        name = choices.get(family) or own["_target_"]
        if node["_target_"] != own["_target_"]:
            of_family = catalog.choices(family)
            name = choice_name(node, of_family)
            own = whole_node(of_family[name], []) if name in of_family else {}
        differing = [f"{option}={value}" for option, value in node.items() if own and own.get(option) != value]
        texts[family] = " ".join((str(name), *differing))
    return texts


def is_choice(key: str) -> bool:
    """Return whether a dotted key names the choice of a family in a kind: `layers.kinds.far.norm`."""
    parts = key.split(".")
    return key.startswith(f"{KINDS}.") and len(parts) == 4 and parts[-1] in FAMILIES


def place(config: Node, key: str) -> str:
    """Return the dotted key of an option of a kind: the config's own key where the kind has no node of its own.

    Any other key stays as it is.
    """
    parts = key.split(".")
    if not key.startswith(f"{KINDS}.") or len(parts) < 5 or is_node(get(config, ".".join(parts[:4]), None)):
        return key
    if is_node(get(config, ".".join(parts[:3]), None)):
        return ".".join(parts[3:])
    return key


def give_own_node(config: Node, key: str) -> None:
    """Give a kind a node of its own, in place, so that an option of it can be set where the kind has the config's."""
    if place(config, key) != key:
        family = key.split(".")[3]
        get(config, ".".join(key.split(".")[:3]))[family] = deepcopy(config[family])


def drop_equal_nodes(config: Node) -> None:
    """Remove the nodes of kinds that are equal to the config's own, in place."""
    for name, nodes in nodes_of_kinds(config).items():
        for family, node in nodes.items():
            if node == config.get(family):
                get(config, f"{KINDS}.{name}")[family] = None


def with_position(config: Node, options: Mapping[str, object]) -> Node:
    """Return the config with options of its position scheme replaced, in the kinds that have the same scheme too."""
    own = config["position"]
    config = {**config, "position": {**own, **options}}
    kinds = dict(get(config, KINDS, None) or {})
    for name, nodes in nodes_of_kinds(config).items():
        if nodes.get("position", {}).get("_target_") == own["_target_"]:
            kinds[name] = {**kinds[name], "position": {**nodes["position"], **options}}
    if kinds:
        return {**config, FAMILY: {**config[FAMILY], "kinds": kinds}}
    return config
