"""A config as a tree of nodes: look up and set dotted keys (`optimizer.lr`), walk over every node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeGuard

# A node of a config, or a whole config: an arbitrary tree of what YAML holds. What is known of it is not its keys but
# the signature of its `_target_`, which `check` compares it with.
Node = dict[str, Any]

ABSENT = object()


def get(config: Mapping[str, Any], key: str, absent: Any = ABSENT) -> Any:
    """Return the value at a dotted key, or `absent` where the config has no such key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return absent
        value = value[part]
    return value


def put(config: Node, path: Sequence[str], value: Any) -> None:
    """Set a copy of a value at a path of keys, in place; a mapping is merged into a mapping.

    Raises ValueError where a list has no such item.
    """
    parent = reach(config, path[:-1])
    key = _key(parent, path[-1])
    if isinstance(value, dict) and isinstance(parent, dict) and isinstance(parent.get(key), dict):
        merge_into(parent[key], deepcopy(value))
    else:
        parent[key] = deepcopy(value)


def reach(config: Node, path: Sequence[str]) -> Any:
    """Return the mapping or list at a path of keys; any other value on the way becomes a mapping, in place.

    Raises ValueError where a list has no such item.
    """
    parent: Any = config
    for part in path:
        key = _key(parent, part)
        if isinstance(parent, dict) and not isinstance(parent.get(key), dict | list):
            parent[key] = {}
        parent = parent[key]
    return parent


def _key(parent: Any, part: str) -> Any:
    """Return a part of a path as the key of a mapping, or the index of a list. Raises ValueError."""
    if isinstance(parent, dict):
        return part
    if not isinstance(parent, list) or not part.isdigit() or int(part) >= len(parent):
        raise ValueError(f"the value has no item {part}")
    return int(part)


def merge_into(config: Node, node: Node) -> None:
    """Merge in place as OmegaConf does: mappings key by key, all else replaced, a missing value (`???`) left out."""
    for key, value in node.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            merge_into(config[key], value)
        elif value != "???" or key not in config:
            config[key] = value


def is_node(value: Any) -> TypeGuard[Node]:
    """Return whether a value describes an object: a mapping with a `_target_`."""
    return isinstance(value, dict) and "_target_" in value


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number. A bool, which is an int in Python, is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def with_each_logger(config: Node, change: Callable[[Node], Node]) -> Node:
    """Return the config with `change` applied to its logger, or to each of several."""
    logger = config.get("logger")
    if not isinstance(logger, dict):
        return config
    if is_node(logger):
        return config | {"logger": change(logger)}
    changed = {name: change(node) if is_node(node) else node for name, node in logger.items()}
    return config | {"logger": changed}


def nodes(tree: Any, prefix: str = "") -> list[tuple[str, Node]]:
    """Return every node with its dotted key, parents first."""
    collected: list[tuple[str, Node]] = []
    if isinstance(tree, dict):
        if "_target_" in tree:
            collected.append((prefix, tree))
        for key, value in tree.items():
            collected += nodes(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            collected += nodes(value, f"{prefix}.{index}")
    return collected


def deepest_node(config: Node, path: list[str]) -> tuple[int, Node | None]:
    """Return the last node along a path of keys, and how many keys lead to it; (0, None) where there is none."""
    deepest: tuple[int, Node | None] = (0, None)
    value: Any = config
    for depth, key in enumerate(path, start=1):
        value = value.get(key) if isinstance(value, dict) else None
        if is_node(value):
            deepest = (depth, value)
    return deepest
