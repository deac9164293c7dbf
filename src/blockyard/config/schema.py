"""The schema of a config node: the options of its class, read from the signature of `__init__`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from blockyard.config.bounds import describe_bounds, exceeded, exceeded_here
from blockyard.config.slots import Slot, nested_node, slot
from blockyard.config.tree import option_name
from blockyard.contracts import FolderPath, Seed, Text

REQUIRED = object()
RESERVED = ("_target_", "_partial_")


class Root:
    """The config keys that are not families.

    Options:
        seed: of weights, data order and every random stream; not part of a run's identity
        name: of the run's folder; null takes the experiment's name, or the model's and the data's
        tags: passed to the loggers
        outputs: the folder that holds all runs
        allow: packages of your own that `_target_` may name
        force: train a finished run again; the old folder is kept under another name
    """

    incidental = frozenset({"name", "tags", "outputs", "allow", "force"})

    def __init__(
        self,
        *,
        seed: Seed = 0,
        name: Text | None = None,
        tags: list[str] = (),  # type: ignore[assignment]
        outputs: FolderPath = "outputs",
        allow: list[str] = (),  # type: ignore[assignment]
        force: bool = False,
    ) -> None:
        raise AssertionError("only the signature is used")


@dataclass(frozen=True)
class Option:
    """One keyword of a target's constructor."""

    name: str
    annotation: Any
    default: Any
    help: str

    def describe(self) -> str:
        """The type as text: "int >= 1", "one of relu, gelu"."""
        return describe(self.annotation)

    @cached_property
    def slot(self) -> Slot | None:
        """What a node must be here; None where the option takes a plain value."""
        return slot(self.annotation)

    def problem(self, value: Any, *, on_this_machine: bool = True) -> str | None:
        """Why `value` is invalid, or None. Of nodes only their place is checked, not their class.

        on_this_machine: also whether this machine has CPU cores enough
        """
        if self.slot is not None:
            return None if self.slot.fits(value) else f"expected {self.describe()}: {self.slot.example}"
        adapter = _adapter(self.annotation)
        try:
            if nested_node(value):
                return f"expected {self.describe()}, not an object"
            if adapter is None:
                return None
            taken = adapter.validate_json(json.dumps(value), strict=True)
            if type(taken) is int and type(value) is not int:  # pydantic takes true for the 1 of a Literal
                return f"expected {self.describe()}"
        except ValidationError as error:
            return exceeded(self.annotation, value) or _explain(error, self.annotation)
        except (TypeError, ValueError, RecursionError):  # what JSON has not, and numbers of thousands of digits
            return f"expected {self.describe()}"
        return exceeded_here(self.annotation, value) if on_this_machine else None

    def convert(self, value: Any) -> Any:
        """`value` as the constructor takes it: tuples from lists, dataclasses from mappings."""
        if self.slot is not None:
            return value
        adapter = _adapter(self.annotation)
        return value if adapter is None else adapter.validate_json(json.dumps(value), strict=True)


@cache
def options(target: type) -> dict[str, Option]:
    """The options of a class by name, with the help its docstring gives."""
    init = target.__init__  # type: ignore[misc]
    hints = _hints(target)
    # Components take ctx and factories by position and their options by keyword; classes of libraries do not
    # make this distinction.
    is_own = any(base.__module__.startswith("blockyard.") for base in target.__mro__)
    kinds = (
        {inspect.Parameter.KEYWORD_ONLY}
        if is_own
        else {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    )
    helps = _help(target)
    result: dict[str, Option] = {}
    for name, parameter in list(inspect.signature(init).parameters.items())[1:]:
        if parameter.kind in kinds and name != "ctx":
            default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
            key = option_name(name)
            result[key] = Option(key, hints.get(name, Any), default, helps.get(key, ""))
    return result


def _hints(target: type) -> dict[str, Any]:
    """Type hints of the constructor; those of a dataclass are resolved in the modules that declare its fields."""
    owner = next(base for base in target.__mro__ if "__init__" in vars(base))
    source = owner if "__dataclass_fields__" in vars(owner) else owner.__init__  # type: ignore[misc]
    try:
        return get_type_hints(source, include_extras=True)
    except (NameError, TypeError):
        return {}


def describe(annotation: Any) -> str:
    """A type hint as text for the user."""
    place = slot(annotation)
    if place is not None:
        return place.describe()
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{describe(args[0])} {describe_bounds(args[1:])}".strip()
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join("null" if arg is type(None) else describe(arg) for arg in args)
    if origin in (list, tuple):
        return "a list of " + ", ".join(dict.fromkeys(describe(arg) for arg in args if arg is not Ellipsis))
    return {int: "int", float: "number", bool: "true or false", str: "text", Any: "anything"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    try:
        return _cached_adapter(annotation)
    except (PydanticUserError, TypeError):
        return None  # a type that no config value can have, such as a module


@cache
def _cached_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _explain(error: ValidationError, annotation: Any) -> str:
    first = error.errors()[0]
    if first["type"] in ("string_too_short", "string_too_long", "string_pattern_mismatch"):
        return f"expected {describe(annotation)} of 1 to 1,000 characters, and no control characters"
    where = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    if first["type"] == "unexpected_keyword_argument":
        return f"it has no field {where!r}; it has {', '.join(_fields(annotation))}"
    nested = [part for part in first["loc"] if part in _fields(annotation)]
    inside = f" ({nested[0]}: {first['msg'].lower()})" if nested else ""
    return f"expected {describe(annotation)}{inside}"


def _fields(annotation: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(annotation)] if dataclasses.is_dataclass(annotation) else []


def _help(target: type) -> dict[str, str]:
    """The lines under "Options:" in the docstrings of a class and its bases."""
    helps: dict[str, str] = {}
    for base in reversed(target.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        match = re.search(r"^Options:\n((?:[ \t]+.*\n?|\n)+)", text + "\n", re.MULTILINE)
        if match:
            for line in re.finditer(r"^ {4}(\w+): *(.+(?:\n {5,}.+)*)", match.group(1), re.MULTILINE):
                helps[line.group(1)] = " ".join(line.group(2).split())
    return helps
