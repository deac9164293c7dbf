"""Nodes that a class takes by name, filled in from the choices of that name.

A class says so in `draws`: {"members": ("token_mixer", "pattern")} fills its option `members` with a node for each
name in its option `pattern`: that choice of token_mixer, under the options that are given for it. A name that is no
choice and holds no node is left to the class to refuse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from blockyard import catalog
from blockyard.overrides import nodes
from blockyard.schema import allowed, locate, options


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
