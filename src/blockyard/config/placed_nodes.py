"""The nodes of a config where nodes belong: of each family, and of the options that take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from blockyard.config.build import CONTRACTS, LATE_KEYS, RUNTIME_CONTRACTS, SOURCE_CONTRACTS
from blockyard.config.schema import RESERVED, Option, options
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES, allow_of, find, locate, own_packages
from blockyard.contracts import Kind, TorchMetric

# Modules of other libraries may read files or connect as they are made.
LAYERS = ("blockyard", "torch")


@dataclass(frozen=True)
class Placed:
    """A node in its place.

    key: dotted
    required: the class that the node's class must derive from
    late: the node is a factory and waits for a Context
    own: the packages besides the trusted ones that the config may name
    """

    key: str
    node: Node
    required: type
    late: bool
    own: tuple[str, ...]

    @property
    def target(self) -> str:
        """The dotted name of its class."""
        return str(self.node["_target_"])

    @cached_property
    def target_class(self) -> type | None:
        """Its class, asked for once; None where there is none, or its package may have no class in this place."""
        return find(self.target, (*self.packages, *self.own))

    @property
    def options(self) -> dict[str, Option]:
        """The options of its class; none without a class."""
        return {} if self.target_class is None else options(self.target_class)

    @property
    def kind(self) -> str:
        """The name of the required class."""
        return "torchmetrics.Metric" if self.required is TorchMetric else self.required.__name__

    @property
    def packages(self) -> tuple[str, ...]:
        """The trusted packages that may have a class in this place: a module is of this project or of torch."""
        if self.required is TorchMetric:
            return ()  # the metrics of torchmetrics are named by `metrics`, not by a node
        return LAYERS if issubclass(self.required, nn.Module | Kind) else TRUSTED_PACKAGES


def placed_nodes(config: Node) -> Iterator[Placed]:
    """Yield every node that is in its place, parents first. A node anywhere else is an invalid value."""
    own = own_packages(allow_of(config))
    for family in (*CONTRACTS, *SOURCE_CONTRACTS, *RUNTIME_CONTRACTS):
        value: Any = config.get(family)
        if is_node(value):
            yield from _with_inner(Placed(family, value, contract(family), family in LATE_KEYS, own))
        elif isinstance(value, dict) and family in RUNTIME_CONTRACTS:  # several callbacks or loggers by name
            for name, node in value.items():
                if is_node(node):
                    yield from _with_inner(Placed(f"{family}.{name}", node, contract(family), False, own))


def _with_inner(place: Placed) -> Iterator[Placed]:
    yield place
    declared = place.options
    for name, value in place.node.items():
        slot = declared[name].slot if name in declared else None
        if slot is None or not isinstance(value, dict):
            continue
        for inner, node in value.items() if slot.named else [("", value)]:
            if is_node(node):
                key = ".".join(filter(None, (place.key, name, inner)))
                yield from _with_inner(Placed(key, node, slot.required, slot.late, place.own))


def options_of(node: Node, allow: list[str]) -> dict[str, Option]:
    """Return the options of a node's class; none if the class is not allowed or does not exist."""
    located = find(str(node["_target_"]), (*TRUSTED_PACKAGES, *own_packages(allow)))
    return {} if located is None else options(located)


def fits(node: Node, name: str, declared: dict[str, Option]) -> bool:
    """Return whether the value of a key of a node fits its option; a reserved key always does."""
    return name in RESERVED or (name in declared and declared[name].problem(node[name]) is None)


def are_sound(config: Node) -> bool:
    """Return whether every value of every node fits its option."""
    return all(
        fits(place.node, name, place.options) for place in placed_nodes(config) if place.options for name in place.node
    )


def contract(family: str) -> type:
    """Return the class that the nodes of a family must derive from."""
    single = CONTRACTS | SOURCE_CONTRACTS
    return single[family] if family in single else locate(RUNTIME_CONTRACTS[family])
