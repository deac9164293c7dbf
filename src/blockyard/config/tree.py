"""A config as a tree of nodes: look up dotted keys (`optimizer.lr`), walk over every node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

# A node of a config, or a whole config: an arbitrary tree of what YAML holds. What is known of it is not its keys but
# the signature of its `_target_`, which `check` compares it with.
Node = dict[str, Any]

ABSENT = object()


def get(config: Mapping[str, Any], key: str, absent: Any = ABSENT) -> Any:
    """The value at a dotted key, or `absent` where the config has no such key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return absent
        value = value[part]
    return value


def is_node(value: Any) -> TypeGuard[Node]:
    """Whether a value describes an object: a mapping with a `_target_`."""
    return isinstance(value, dict) and "_target_" in value


def with_each_logger(config: Node, change: Callable[[Node], Node]) -> Node:
    """The config with `change` applied to its logger, or to each of several."""
    node = config.get("logger")
    if not isinstance(node, dict):
        return config
    if is_node(node):
        return config | {"logger": change(node)}
    return config | {"logger": {name: change(each) if is_node(each) else each for name, each in node.items()}}


def nodes(tree: Any, prefix: str = "") -> list[tuple[str, Node]]:
    """Every node with its dotted key, parents first."""
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
    """The last node along a path of keys, and how many keys lead to it; (0, None) where there is none."""
    deepest: tuple[int, Node | None] = (0, None)
    value: Any = config
    for depth, key in enumerate(path, start=1):
        value = value.get(key) if isinstance(value, dict) else None
        if is_node(value):
            deepest = (depth, value)
    return deepest
