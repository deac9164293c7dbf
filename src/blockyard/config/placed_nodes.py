"""The nodes of a config where nodes belong: of each family, and of the options that take them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn

from blockyard.config import tree
from blockyard.config.build import CONTRACTS, LATE_KEYS, RUNTIME_CONTRACTS, SOURCE_CONTRACTS
from blockyard.config.choices import catalog
from blockyard.config.schema import REQUIRED, RESERVED, Option, Root, options
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES, allow_of, allowed, locate, own_packages
from blockyard.contracts import Issue, Kind, TorchMetric
from blockyard.errors import near

# Modules of other libraries may read files or connect as they are made.
LAYERS = ("blockyard", "torch")


class Placed(NamedTuple):
    """A node in its place.

    key: dotted
    required: the class that its own must derive from
    late: it is a factory, which waits for a Context
    """

    key: str
    node: Node
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

    @property
    def kind(self) -> str:
        """The class that its own must derive from, as text."""
        return "torchmetrics.Metric" if self.required is TorchMetric else self.required.__name__

    @property
    def packages(self) -> tuple[str, ...]:
        """The trusted packages that may have what is built here."""
        if self.required is TorchMetric:
            return ()  # those of torchmetrics have names
        return LAYERS if issubclass(self.required, nn.Module | Kind) else TRUSTED_PACKAGES

    def may_be(self, allow: list[str]) -> bool:
        """Whether its package may have what is built here: a module is ours, torch's, or of an allowed package."""
        return self.target.split(".")[0] in (*self.packages, *own_packages(allow))


def placed_nodes(config: Node, allow: list[str]) -> Iterator[Placed]:
    """Every node that is in its place, parents first. A node anywhere else is an invalid value."""
    for family in (*CONTRACTS, *SOURCE_CONTRACTS, *RUNTIME_CONTRACTS):
        value: Any = config.get(family)
        if is_node(value):
            yield from _with_inner(Placed(family, value, contract(family), family in LATE_KEYS), allow)
        elif isinstance(value, dict) and family in RUNTIME_CONTRACTS:  # several by name
            for name, node in value.items():
                if is_node(node):
                    yield from _with_inner(Placed(f"{family}.{name}", node, contract(family), False), allow)


def are_sound(config: Node) -> bool:
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


# Options that a class fills by name: `token_mixer.pattern=[conv,attention]` brings the YAMLs of conv and attention.
#
# A class declares them in `nested_choices`: {"members": ("token_mixer", "pattern")} fills its option `members` with
# one node for each name in its option `pattern`, a list or one name: the token_mixer of that name, under any options
# that the config sets for it. A mapping there gives names of its own to choices. A third item holds values that differ
# from the defaults of the choices that have such options. A name that is neither a choice nor a node of `members` is
# left in place, and reported by `unknown_names`.


class NestedChoices(NamedTuple):
    """A node with an option that is filled by name.

    key: of the node; option: the one that is filled; family: of the choices; names: the option that lists them
    values: of options of the choices, in place of their defaults
    """

    key: str
    node: Node
    option: str
    family: str
    names: str
    values: Mapping[str, Any] = MappingProxyType({})

    def requested(self) -> dict[str, str] | None:
        """The choice of each name that is listed; None where a value has the wrong type, which `check` reports."""
        default = options(locate(str(self.node["_target_"])))[self.names].default
        names = self.node.get(self.names, default)
        names = [names] if isinstance(names, str) else names
        if isinstance(names, list | tuple):
            names = {name: name for name in names if isinstance(name, str)} if _are_texts(names) else None
        fits = isinstance(names, dict) and _are_texts([*names, *names.values()])
        return names if fits and isinstance(self.node.get(self.option, {}), dict) else None


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(each, str) for each in values)


def nested_choices(config: Node) -> list[NestedChoices]:
    """Every option of a config that is filled by name."""
    collected = []
    allow = allow_of(config)
    for place in placed_nodes(config, allow):
        if place.options(allow):
            declared = getattr(locate(place.target), "nested_choices", {})
            collected += [NestedChoices(place.key, place.node, option, *source) for option, source in declared.items()]
    return collected


def unknown_names(config: Node, folders: tuple[Path, ...] = ()) -> Iterator[Issue]:
    """One issue for each listed name that is neither a choice of the family nor a node of the option."""
    for nested in nested_choices(config):
        by_name, choices = nested.node.get(nested.option), catalog.choices(nested.family, folders)
        for key, name in (nested.requested() or {}).items():
            if isinstance(by_name, dict) and name not in choices and key not in by_name:
                text = f"{name!r} is neither a {nested.family} nor one of {nested.key}.{nested.option}"
                see = f"`blockyard list {nested.family}`"
                yield Issue(f"{nested.key}.{nested.names}", text, near(name, choices), see)


def fill(config: Node, folders: tuple[Path, ...] = ()) -> None:
    """Fill in the nested choices in place; `folders` are the user's own config folders."""
    for nested in nested_choices(config):
        names = nested.requested()
        if names is None:
            continue
        by_name, choices = nested.node.setdefault(nested.option, {}), catalog.choices(nested.family, folders)
        for name, choice in names.items():
            node = by_name.get(name, {})
            if choice in choices and isinstance(node, dict) and not tree.is_node(node):
                values = {key: value for key, value in nested.values.items() if key in choices[choice].options}
                by_name[name] = {**values, **(catalog.content(choices[choice].path) or {}), **node}


# Defaults: a YAML names a class and what differs from its signature, and a config has every option.


def fill_defaults(config: Node) -> None:
    """Write the default of every option that a config leaves out into it, in place and in the order of the signatures.

    A node whose class is not allowed is left as it is.
    """
    _fill(config, options(Root))
    allow = allow_of(config)
    for place in list(placed_nodes(config, allow)):
        _fill(place.node, place.options(allow))


def default_node(family: str, name: str) -> Node:
    """The node of one of the package's choices, with every option."""
    return whole_node(catalog.choices(family)[name], [])


def whole_node(choice: catalog.Choice, allow: list[str]) -> Node:
    """The node of a choice, or its nodes by name, with every option."""
    config: Node = {choice.family: catalog.content(choice.path) or {}, "allow": allow}
    fill_defaults(config)
    node: Node = config[choice.family]
    return node


def plain_default(value: Any) -> Any:
    """A default as config data: a factory as its node, a dataclass as a mapping, a tuple as a list."""
    if isinstance(value, partial):
        node = {"_target_": f"{value.func.__module__}.{value.func.__qualname__}", "_partial_": True}
        return node | {name: plain_default(option) for name, option in value.keywords.items()}
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: plain_default(each) for name, each in value.items()}
    return [plain_default(each) for each in value] if isinstance(value, tuple) else value


def _fill(node: Node, declared: dict[str, Option]) -> None:
    for name, option in declared.items():
        value = node.get(name)
        if name not in node:
            default = plain_default(option.default)
            # A library's class may have a default that no YAML can hold, such as a device: it stays unwritten.
            writable = default is None or isinstance(default, bool | int | float | str | list | dict)
            if option.default is not REQUIRED and writable:
                node[name] = default
        elif (
            isinstance(value, dict)
            and not is_node(value)
            and isinstance(default := plain_default(option.default), dict)
        ):
            node[name] = _merged(default, value)
    node.update({name: node.pop(name) for name in declared if name in node})


def _merged(default: Node, value: Node) -> Node:
    """A mapping over its default, as Hydra merges them."""
    merged = dict(default)
    for name, inner in value.items():
        below = default.get(name)
        if isinstance(below, dict) and isinstance(inner, dict) and not is_node(inner):
            inner = _merged(below, inner)
        merged[name] = inner
    return merged
