"""Options that a class fills by name: `token_mixer.pattern=[conv,attention]` brings the YAMLs of conv and attention.

A class declares them in `nested_choices`: {"members": ("token_mixer", "pattern")} fills its option `members` with
one node for each name in its option `pattern`, a list or one name: the token_mixer of that name, under any options
that the config sets for it. A mapping there gives names of its own to choices. A third item holds values that differ
from the defaults of the choices that have such options. A name that is neither a choice nor a node of `members` is
left in place, and reported by `unknown_names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from blockyard.config.choices import catalog
from blockyard.config.placed_nodes import Placed, placed_nodes
from blockyard.config.tree import Node, is_node, put
from blockyard.contracts import Issue
from blockyard.errors import near


class NestedChoices(NamedTuple):
    """A node with an option that is filled by name.

    option: the one that is filled
    family: the family of the choices
    names: the option that lists them
    values: of options of the choices, in place of their defaults
    """

    place: Placed
    option: str
    family: str
    names: str
    values: Mapping[str, Any] = MappingProxyType({})

    @property
    def listing(self) -> str:
        """The dotted key of the option that lists the names."""
        return f"{self.place.key}.{self.names}"

    def requested(self) -> dict[str, str] | None:
        """Return the choice of each listed name; None where a value has the wrong type. `check` reports that."""
        node = self.place.node
        names = node.get(self.names, self.place.options[self.names].default)
        if isinstance(names, str):
            names = [names]
        if isinstance(names, list | tuple):
            if not _are_texts(names):
                return None
            names = {name: name for name in names}
        if not isinstance(names, dict) or not _are_texts([*names, *names.values()]):
            return None
        if isinstance(node.get(self.option, {}), dict):
            return names
        return None


def fill(config: Node, folders: tuple[Path, ...] = (), typed: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Fill in the nested choices in place.

    folders: the user's own config folders
    typed: values of the command line by their keys; lists of names are put into the config first
    """
    # Collected first: a choice that names itself would be filled without end.
    for nested in list(_nested_choices(config)):
        if nested.listing in typed:
            put(nested.place.node, [nested.names], typed[nested.listing])
        names = nested.requested()
        if names is None:
            continue
        nodes = nested.place.node.setdefault(nested.option, {})
        choices = catalog.choices(nested.family, folders)
        for name, choice in names.items():
            node = nodes.get(name, {})
            if choice in choices and isinstance(node, dict) and not is_node(node):
                values = {key: value for key, value in nested.values.items() if key in choices[choice].options}
                nodes[name] = {**values, **(catalog.content(choices[choice].path) or {}), **node}


def unknown_names(config: Node, folders: tuple[Path, ...]) -> Iterator[Issue]:
    """Yield one issue for each listed name that is neither a choice of the family nor a node of the option."""
    for nested in _nested_choices(config):
        nodes = nested.place.node.get(nested.option)
        choices = catalog.choices(nested.family, folders)
        for key, name in (nested.requested() or {}).items():
            if isinstance(nodes, dict) and name not in choices and key not in nodes:
                text = f"{name!r} is neither a {nested.family} nor one of {nested.place.key}.{nested.option}"
                yield Issue(nested.listing, text, near(name, choices), f"`blockyard list {nested.family}`")


def _nested_choices(config: Node) -> Iterator[NestedChoices]:
    """Yield every option of a config that is filled by name."""
    for place in placed_nodes(config):
        for option, source in getattr(place.target_class, "nested_choices", {}).items():
            yield NestedChoices(place, option, *source)


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
