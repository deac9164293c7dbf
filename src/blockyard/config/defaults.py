"""Fills in defaults: a YAML names a class and the options that differ from its signature, a config has every option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from blockyard.config import nested_choices
from blockyard.config.choices import catalog
from blockyard.config.placed_nodes import placed_nodes
from blockyard.config.schema import REQUIRED, Option, Root, options
from blockyard.config.tree import Node, is_node

# Family -> its default choice. A config leaves the node of the family out where it is this one, as it was before there
# was the family: the identity of those runs is the same.
LEFT_OUT = {"residual": "add", "layers": "same", "parametrization": "standard", "init": "default"}


def complete(config: Node, folders: tuple[Path, ...] = ()) -> None:
    """Write every option into a config, in place, in nested choices too, so that a frozen config is whole."""
    nested_choices.fill(config, folders)
    fill_defaults(config)


def fill_defaults(config: Node) -> None:
    """Write the default of every option that a config leaves out into it, in place and in the order of the signatures.

    A node with a class that is not allowed stays as it is.
    """
    _fill(config, options(Root))
    for place in list(placed_nodes(config)):
        _fill(place.node, place.options)


def leave_out_defaults(config: Node, choices: dict[str, str | None]) -> None:
    """Remove the nodes of `LEFT_OUT`, and their choices, in place."""
    for family, node in _left_out_nodes().items():
        if config.get(family) == node:
            del config[family]
            choices.pop(family, None)


@cache  # the package's own files do not change while a process runs
def _left_out_nodes() -> dict[str, Node]:
    return {family: default_node(family, name) for family, name in LEFT_OUT.items()}


def default_node(family: str, name: str) -> Node:
    """Return the node of one of the package's choices, with every option."""
    return whole_node(catalog.choices(family)[name], [])


def whole_node(choice: catalog.Choice, allow: list[str]) -> Node:
    """Return the node of a choice, or its nodes by name, with every option."""
    config: Node = {choice.family: catalog.content(choice.path) or {}, "allow": allow}
    fill_defaults(config)
    node: Node = config[choice.family]
    return node


def plain_default(value: Any) -> Any:
    """Return a default as config data: a factory as its node, a dataclass as a mapping, a tuple as a list."""
    if isinstance(value, partial):
        node = {"_target_": f"{value.func.__module__}.{value.func.__qualname__}", "_partial_": True}
        return node | {name: plain_default(option) for name, option in value.keywords.items()}
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: plain_default(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain_default(item) for item in value]
    return value


def _fill(node: Node, declared: dict[str, Option]) -> None:
    """Write the defaults of declared options into a node, in place."""
    for name, option in declared.items():
        if name not in node:
            default = plain_default(option.default)
            # A default of a library's class, such as a device, stays unwritten: YAML cannot hold it.
            is_writable = default is None or isinstance(default, bool | int | float | str | list | dict)
            if option.default is not REQUIRED and is_writable:
                node[name] = default
            continue
        value = node[name]
        if isinstance(value, dict) and not is_node(value):
            default = plain_default(option.default)
            node[name] = _merged(default, value) if isinstance(default, dict) else value
    # In the order of the signature, whatever order the files and the command line had.
    node.update({name: node.pop(name) for name in declared if name in node})


def _merged(default: Node, value: Node) -> Node:
    """Return a mapping over its default, as Hydra merges them."""
    merged = dict(default)
    for name, inner in value.items():
        below = default.get(name)
        if isinstance(below, dict) and isinstance(inner, dict) and not is_node(inner):
            inner = _merged(below, inner)
        merged[name] = inner
    return merged
