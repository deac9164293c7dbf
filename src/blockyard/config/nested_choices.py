"""Nodes that a class takes by name, filled in from the choices of that name.

A class says so in `draws`: {"members": ("token_mixer", "pattern")} fills its option `members` with a node for each
name in its option `pattern`: that choice of token_mixer, under the options that are given for it. A name that is no
choice and holds no node is left to the class to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blockyard.config import catalog
from blockyard.config.overrides import nodes
from blockyard.config.schema import allowed, locate, options
from blockyard.contracts import Issue
from blockyard.errors import near


class Drawer(NamedTuple):
    """A node whose class draws others: which option it fills, from which family, by the names in which option."""

    key: str
    node: dict[str, Any]
    option: str
    family: str
    names: str


def drawers(config: dict[str, Any]) -> list[Drawer]:
    """Every node of a config whose class draws others."""
    found = []
    for key, node in nodes(config):
        target = str(node["_target_"])
        if allowed(target, list(config.get("allow") or [])):
            try:
                draws = getattr(locate(target), "draws", {})
            except ValueError:
                continue  # the check says so
            found += [Drawer(key, node, option, family, names) for option, (family, names) in draws.items()]
    return found


def unknown_names(config: dict[str, Any], folders: tuple[Path, ...] = ()) -> Iterator[Issue]:
    """One issue per name that is neither a choice of the family nor a node given beside it."""
    for key, node, option, family, names in drawers(config):
        nodes_by_name = node.get(option)
        requested = node.get(names, options(locate(str(node["_target_"])))[names].default)
        if not isinstance(nodes_by_name, dict) or not isinstance(requested, list | tuple):
            continue  # the wrong type is reported elsewhere
        known = catalog.choices(family, folders)
        for name in dict.fromkeys(map(str, requested)):
            if name not in known and name not in nodes_by_name:
                text = f"{name!r} is neither a {family} nor one of {key}.{option}"
                yield Issue(f"{key}.{names}", text, near(name, known) or [f"`blockyard list {family}`"])


def draw(config: dict[str, Any], folders: tuple[Path, ...] = ()) -> None:
    """Fill in what is drawn, in place; `folders` are a user's own config folders."""
    for _, node, option, family, names in drawers(config):
        wanted = node.get(names, options(locate(str(node["_target_"])))[names].default)
        held = node.setdefault(option, {})
        if not isinstance(held, dict) or not isinstance(wanted, list | tuple):
            continue  # the check says so
        known = catalog.choices(family, folders)
        for name in map(str, wanted):
            given = held.get(name, {})
            if name in known and isinstance(given, dict) and "_target_" not in given:
                held[name] = {**(catalog.content(known[name].path) or {}), **given}
