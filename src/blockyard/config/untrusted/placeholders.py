"""Stand-ins for PyTorch and the libraries on it, with which the classes of the package can be read but not used.

Options, traits and rules are facts of classes, and a module of the package can be imported once it finds the names that
it imports. `install` lets the import system answer those names with empty classes, in a process that ends with its
answer. Whoever needs a value of PyTorch there gets `NeedsTorchError`, and the command starts again with the library
itself.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

# PyTorch, and what imports it.
LIBRARIES = (
    *("torch", "torchvision", "torchmetrics", "pytorch_lightning", "lightning", "lightning_fabric"),
    *("lightning_utilities", "timm", "transformers", "safetensors", "submitit", "ray", "optuna", "wandb"),
    "pytorch_optimizer",
)
# Classes are made and asked for their traits in these, and never for a value of PyTorch.
CONTEXTS = ("torch.device",)


class NeedsTorchError(BaseException):
    """The answer depends on a value of PyTorch. No handler of ordinary errors may take it for a problem of a config."""


def install() -> bool:
    """Let imports of this process find stand-ins; return False where one of the libraries is imported already."""
    if any(library in sys.modules for library in LIBRARIES):
        return False
    sys.meta_path.insert(0, _Finder())
    return True


def installed() -> bool:
    """Return whether this process reads the package with stand-ins."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def require_torch() -> None:
    """Raise NeedsTorchError where only stand-ins are there: before anything is built, read or written with PyTorch."""
    if installed():
        raise NeedsTorchError


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for every name in the libraries."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of an empty module; None for a module of any other package."""
        if name.partition(".")[0] in LIBRARIES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the empty module."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is executed."""


class _Module(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        return _member(self.__name__, name)


# The metaclass of protocols is that of ABCs too: a class of the package may have both and a stand-in as bases.
class _StandInType(type(Protocol)):  # type: ignore[misc]
    """The type of stand-ins and of the package's classes that derive from one."""

    def __getattr__(cls, name: str) -> Any:
        if "_dotted" in vars(cls):
            return _member(cls._dotted, name)
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")

    def __neg__(cls) -> _Value:
        return _Value()


class _StandIn(metaclass=_StandInType):
    """The base of every stand-in, and so of the package's classes that derive from one."""

    # Not `__call__` of the metaclass, whose signature would be the one of every class.
    def __new__(cls, *_arguments: Any, **_keywords: Any) -> Any:
        """Return an object of a class of the package; of a library, the result of a call while a module is imported.

        Raises NeedsTorchError for any other call of a library: its result would be used.
        """
        if "_dotted" not in vars(cls):
            return super().__new__(cls)
        if cls._dotted not in CONTEXTS and not _is_importing():
            raise NeedsTorchError
        return _Value()

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    def __class_getitem__(cls, _item: Any) -> Any:
        return cls


class _Value:
    """The result of a call of a library: usable as a decorator and as a context, and unknown in any other use."""

    def __call__(self, *arguments: Any, **_keywords: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]):
            return arguments[0]
        return self

    def __enter__(self) -> _Value:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NeedsTorchError

    def _unknown(self, *_arguments: Any) -> NoReturn:
        raise NeedsTorchError

    __bool__ = __iter__ = __len__ = __getitem__ = __int__ = __float__ = __index__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _unknown
    __pow__ = __rpow__ = __matmul__ = __and__ = __or__ = __neg__ = __invert__ = __setitem__ = _unknown


def _is_importing() -> bool:
    """Return whether a module is being executed: the caller is a decorator, a constant or a default of the package."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_MADE: dict[str, type] = {}  # one class for each dotted name, however it is reached


def _member(owner: str, name: str) -> Any:
    """Return the stand-in of a name in a module or class of a library."""
    if name.startswith("__"):
        raise AttributeError(name)
    dotted = f"{owner}.{name}"
    if dotted not in _MADE:
        base = _StandIn
        if owner == "torch.nn" and name != "Module":  # a norm is a choice, and the config asks for a module
            base = _member(owner, "Module")
        _MADE[dotted] = _StandInType(name, (base,), {"__module__": owner, "_dotted": dotted})
    return _MADE[dotted]
