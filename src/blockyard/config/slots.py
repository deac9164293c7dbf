"""Options that take nodes: mechanisms made of others. Any other option takes a plain value, and refuses a node."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple, Union, get_args, get_origin

from torch import nn

from blockyard.config.tree import is_node


class Slot(NamedTuple):
    """The nodes that an option takes.

    required: the class that theirs must derive from
    late: they are factories, which wait for a Context
    named: there are several, by name
    optional: null will do
    deferred: the node is built when the option is called, so that what reads files as it is made waits for its use
    """

    required: type
    late: bool
    named: bool = False
    optional: bool = False
    deferred: bool = False

    def fits(self, value: Any) -> bool:
        """Whether a value is a node, or nodes by name, whatever their classes."""
        if self.optional and value is None:
            return True
        if self.named:
            return isinstance(value, dict) and not is_node(value) and all(map(self._is_one, value.values()))
        return self._is_one(value)

    def describe(self) -> str:
        """The nodes as text: "a TokenMixer as a node"."""
        text = f"{self.required.__name__}s as nodes, by name" if self.named else f"a {self.required.__name__} as a node"
        return f"{text} or null" if self.optional else text

    @property
    def example(self) -> str:
        """How such a value is written."""
        node = "{_target_: ..., _partial_: true}" if self.late else "{_target_: ...}"
        return f"{{name: {node}}}" if self.named else node

    def _is_one(self, value: Any) -> bool:
        return is_node(value) and (value.get("_partial_") is True or not self.late)


def slot(annotation: Any) -> Slot | None:
    """The nodes that an option with this annotation takes; None where it takes plain values.

    Callable[[Context], TokenMixer] is a factory, Callable[[], Dataset] is a node that is built later, dict[str, ...]
    are several by name, and a module is a node itself.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        slots = [inner for each in arguments if (inner := slot(each))]
        return slots[0]._replace(optional=type(None) in arguments) if slots else None
    if origin is Callable:
        product = arguments[-1]
        if not arguments:
            return None  # any function, which no config value can be
        deferred = arguments[0] == []
        return Slot(product, late=not deferred, deferred=deferred) if inspect.isclass(product) else None
    if origin is dict:
        place = slot(arguments[1])
        return None if place is None or place.named else place._replace(named=True)
    if inspect.isclass(annotation) and issubclass(annotation, nn.Module):
        return Slot(annotation, late=False)
    return None


def nested_node(value: Any) -> bool:
    """Whether a value is a node, or holds one at any depth."""
    if isinstance(value, dict):
        return is_node(value) or any(map(nested_node, value.values()))
    return isinstance(value, list) and any(map(nested_node, value))
