"""Runs operations on the meta device without importing the compiler's modules, which takes two seconds.

torch writes most meta kernels in Python. They import `torch._dynamo` to mark themselves as not to be compiled,
`torch.fx.experimental.symbolic_shapes` to decide conditions on shapes, and sympy to recognize its symbols. While a
model is built or counted on the meta device, nothing is compiled and no shape is symbolic, so three small modules stand
in for them. Anything else that is requested of a stand-in ends its use and imports the real modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

DYNAMO = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
SYMPY = "sympy"
CACHE = "__dynamo_disable"  # where torch._compile keeps the result of `disable` for a function

# Functions of torch.fx.experimental.symbolic_shapes for plain numbers and bools, and sequences of them.
PLAIN: dict[str, Callable[..., Any]] = {
    "expect_true": bool,
    "guard_or_false": bool,
    "guard_or_true": bool,
    "guard_size_oblivious": bool,
    "statically_known_true": bool,
    "sym_and": lambda *conditions: all(conditions),
    "sym_or": lambda *conditions: any(conditions),
    "sym_eq": lambda one, other: list(one) == list(other) if _sequences(one, other) else one == other,
    "is_nested_int": lambda _: False,
    "has_guarding_hint": lambda _: True,
    "guarding_hint_or_throw": lambda value: value,
}


class _StandIn(ModuleType):
    """A module with a few attributes of the real one; any other attribute comes from the real one."""

    def __init__(self, name: str, attributes: dict[str, Any], end: Callable[[], None]) -> None:
        super().__init__(name)
        self.__dict__.update(attributes)
        self.names, self.end = tuple(attributes), end

    def __getattr__(self, name: str) -> Any:
        # The import system reads such names of every module; only a package has a path.
        of_import_system = name.startswith("__") and (name != "__path__" or self.__name__ == SHAPES)
        if of_import_system and sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        self.end()
        return getattr(importlib.import_module(self.__name__), name)

    def remove(self) -> None:
        """Make way for the real module, also in code that has imported this one."""
        for name in self.names:
            self.__dict__.pop(name, None)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@contextmanager
def without_compiler() -> Iterator[None]:
    """Run operations on the meta device inside this context without importing the compiler or sympy.

    A module that is already imported is used as it is. No stand-in is left at the end.
    """
    modules: list[_StandIn] = []
    unmarked: list[Callable[..., Any]] = []

    def end() -> None:
        for module in modules:
            module.remove()
        while unmarked:
            unmarked.pop().__dict__.pop(CACHE, None)

    def disable(fn: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        unmarked.append(fn)
        return fn

    attributes: dict[str, dict[str, Any]] = {
        DYNAMO: {"disable": disable},
        SHAPES: {name: _function(name, plain, end) for name, plain in PLAIN.items()},
        SYMPY: {name: type(name, (), {}) for name in ("Basic", "Expr", "Symbol")},
    }
    for name, values in attributes.items():
        if name not in sys.modules:
            module = _StandIn(name, values, end)
            modules.append(module)
            sys.modules[name] = module
    try:
        yield
    finally:
        end()


def _function(name: str, plain: Callable[..., Any], end: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that is `plain` if it applies, and torch's function of that name otherwise."""

    def function(*args: Any, **options: Any) -> Any:
        if not options and all(map(_is_plain, args)):
            return plain(*args)
        end()
        return getattr(importlib.import_module(SHAPES), name)(*args, **options)

    return function


def _is_plain(value: Any) -> bool:
    if type(value) in (bool, int, float):  # first: a count of FLOPs asks 20,000 times
        return True
    return _sequences(value) and all(map(_is_plain, value))


def _sequences(*values: Any) -> bool:
    return all(isinstance(value, (tuple, list)) for value in values)
