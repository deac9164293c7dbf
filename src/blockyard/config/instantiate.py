"""Builds the object, or the factory, that a config node describes."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from blockyard.config.choices.catalog import parameter_name
from blockyard.config.schema import RESERVED, Option, options
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allowed, locate
from blockyard.errors import UserError


def settings(node: Node, allow: list[str]) -> Node:
    """Return a node's options as its constructor takes them; nodes inside it are instantiated."""
    signature = options(locate(node["_target_"]))
    arguments = {}
    for name, value in node.items():
        if name not in RESERVED:
            arguments[parameter_name(name)] = _argument(signature[name], value, allow)
    return arguments


def instantiate(node: Node, allow: list[str], inner: torch.device | None = None) -> Any:
    """Return the object, or for a `_partial_` node the factory, that a config node describes.

    inner: where modules among its options are built; on the meta device they allocate nothing
    """
    target = node["_target_"]
    if not allowed(target, allow):
        raise ValueError(f"{target} is not in an allowed package; allow your own with allow=[package]")
    with nullcontext() if inner is None else inner:
        values = settings(node, allow)
    factory = partial(locate(target), **values)
    return factory if node.get("_partial_") else factory()


def _argument(option: Option, value: Any, allow: list[str]) -> Any:
    """Return an option's value as the constructor takes it."""
    slot = option.slot
    if slot is not None and slot.or_plain and isinstance(value, dict):
        nodes = {name: partial(instantiate, node, allow) for name, node in value.items() if is_node(node)}
        converted = option.convert({name: item for name, item in value.items() if name not in nodes})
        return {name: nodes.get(name) or converted[name] for name in value}
    if is_node(value):
        if slot is not None and slot.deferred:
            return partial(instantiate, value, allow)
        return instantiate(value, allow)
    if isinstance(value, dict) and value and all(map(is_node, value.values())):
        return {name: _instantiate_named(name, node, allow) for name, node in value.items()}
    return option.convert(value)


def _instantiate_named(name: str, node: Node, allow: list[str]) -> Any:
    """Return the object of one of several nodes by name. Raises ValueError, or UserError, with the name in front."""
    try:
        return instantiate(node, allow)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
