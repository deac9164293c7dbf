"""The nodes of a config where nodes belong: of each family, and of the options that take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from blockyard.config.build import CONTRACTS, LATE_KEYS, RUNTIME_CONTRACTS, SOURCE_CONTRACTS
from blockyard.config.schema import RESERVED, Option, options
from blockyard.config.targets import allow_of, allowed, locate, own_packages
from blockyard.config.tree import is_node

# Modules of other libraries may read files or connect as they are made.
LAYERS = ("blockyard", "torch")


class Placed(NamedTuple):
    """A node in its place.

    key: dotted
    required: the class that its own must derive from
    late: it is a factory, which waits for a Context
    """

    key: str
    node: dict[str, Any]
    required: type
    late: bool

    @property
    def target(self) -> str:
        """The dotted name of its class."""
        return str(self.node["_target_"])

    def options(self, allow: list[str]) -> dict[str, Option]:
        """The options of its class; none if that is not allowed or does not exist."""
        try:
            return options(locate(self.target)) if allowed(self.target, allow) and self.may_be(allow) else {}
        except ValueError:
            return {}

    def may_be(self, allow: list[str]) -> bool:
        """Whether its package may have what is built here: a module is ours, torch's, or of an allowed package."""
        return not issubclass(self.required, nn.Module) or self.target.split(".")[0] in (
            *LAYERS,
            *own_packages(allow),
        )


def placed_nodes(config: dict[str, Any], allow: list[str]) -> Iterator[Placed]:
    """Every node that is in its place, parents first. A node anywhere else is an invalid value."""
    for family in (*CONTRACTS, *SOURCE_CONTRACTS, *RUNTIME_CONTRACTS):
        value: Any = config.get(family)
        if is_node(value):
            yield from _with_inner(Placed(family, value, contract(family), family in LATE_KEYS), allow)
        elif isinstance(value, dict) and family in RUNTIME_CONTRACTS:  # several by name
            for name, node in value.items():
                if is_node(node):
                    yield from _with_inner(Placed(f"{family}.{name}", node, contract(family), False), allow)


def are_sound(config: dict[str, Any]) -> bool:
    """Whether every value of every node fits its option."""
    allow = allow_of(config)
    return all(
        name in declared and declared[name].problem(value) is None
        for place in placed_nodes(config, allow)
        if (declared := place.options(allow))
        for name, value in place.node.items()
        if name not in RESERVED
    )


def contract(family: str) -> type:
    """The class that the nodes of a family must derive from."""
    single = CONTRACTS | SOURCE_CONTRACTS
    return single[family] if family in single else locate(RUNTIME_CONTRACTS[family])


def _with_inner(place: Placed, allow: list[str]) -> Iterator[Placed]:
    yield place
    declared = place.options(allow)
    for name, value in place.node.items():
        slot = declared[name].slot if name in declared else None
        if slot is None or not isinstance(value, dict):
            continue
        for inner, node in value.items() if slot.named else [("", value)]:
            if is_node(node):
                key = ".".join(filter(None, (place.key, name, inner)))
                yield from _with_inner(Placed(key, node, slot.required, slot.late), allow)
