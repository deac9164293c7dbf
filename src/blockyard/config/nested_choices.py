"""Options that a class fills by name: `token_mixer.pattern=[conv,attention]` brings the YAMLs of conv and attention.

A class declares them in `nested_choices`: {"members": ("token_mixer", "pattern")} fills its option `members` with one
node for each name in its option `pattern`: the token_mixer of that name, under any options that the config sets for
it. A name that is neither a choice nor a node of `members` is left in place, and reported by `unknown_names`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from blockyard.config import catalog, tree
from blockyard.config.placed_nodes import placed_nodes
from blockyard.config.schema import options
from blockyard.config.targets import allow_of, locate
from blockyard.contracts import Issue
from blockyard.errors import near


class NestedChoices(NamedTuple):
    """A node with an option that is filled by name.

    key: of the node; option: the one that is filled; family: of the choices; names: the option that lists them
    """

    key: str
    node: dict[str, Any]
    option: str
    family: str
    names: str

    def requested(self) -> list[str] | None:
        """The names that are listed; None where a value has the wrong type, which `check` reports."""
        default = options(locate(str(self.node["_target_"])))[self.names].default
        names = self.node.get(self.names, default)
        by_name = self.node.get(self.option, {})
        listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return list(names) if listed and isinstance(by_name, dict) else None


def nested_choices(config: dict[str, Any]) -> list[NestedChoices]:
    """Every option of a config that is filled by name."""
    collected = []
    allow = allow_of(config)
    for place in placed_nodes(config, allow):
        if place.options(allow):
            declared = getattr(locate(place.target), "nested_choices", {})
            collected += [NestedChoices(place.key, place.node, option, *source) for option, source in declared.items()]
    return collected


def unknown_names(config: dict[str, Any], folders: tuple[Path, ...] = ()) -> Iterator[Issue]:
    """One issue for each listed name that is neither a choice of the family nor a node of the option."""
    for nested in nested_choices(config):
        by_name, choices = nested.node.get(nested.option), catalog.choices(nested.family, folders)
        for name in dict.fromkeys(nested.requested() or []):
            if isinstance(by_name, dict) and name not in choices and name not in by_name:
                text = f"{name!r} is neither a {nested.family} nor one of {nested.key}.{nested.option}"
                see = f"`blockyard list {nested.family}`"
                yield Issue(f"{nested.key}.{nested.names}", text, near(name, choices), see)


def fill(config: dict[str, Any], folders: tuple[Path, ...] = ()) -> None:
    """Fill in the nested choices in place; `folders` are the user's own config folders."""
    for nested in nested_choices(config):
        names = nested.requested()
        if names is None:
            continue
        by_name, choices = nested.node.setdefault(nested.option, {}), catalog.choices(nested.family, folders)
        for name in names:
            node = by_name.get(name, {})
            if name in choices and isinstance(node, dict) and not tree.is_node(node):
                by_name[name] = {**(catalog.content(choices[name].path) or {}), **node}
