"""The schema of a config node: the options of its class, read from the signature of `__init__`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from torch import nn

from blockyard.config.choices.catalog import option_name
from blockyard.config.machine import cpu_cores
from blockyard.config.tree import is_node
from blockyard.contracts import Because, Count, DataModule, FolderPath, Kind, Seed, Text
from blockyard.contracts.option_types import LARGEST_COUNT, LARGEST_FLOAT, LARGEST_SEED, PerCore

REQUIRED = object()  # the default of an option without one
RESERVED = ("_target_", "_partial_")  # keys of every node that are no options
UNSAID = (LARGEST_COUNT, LARGEST_FLOAT, LARGEST_SEED)  # upper bounds that only say that a number is finite
_NAMES_OF_TYPES = {
    int: "int",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    Any: "anything",
}


def describe_bounds(metadata: tuple[Any, ...]) -> str:
    """Return the range of an annotated type: ">= 1 and <= 1,024"."""
    lower: list[tuple[Any, str]] = []
    upper: list[tuple[Any, str]] = []
    for bound in metadata:
        if type(bound) is Ge:
            lower.append((bound.ge, ">="))
        elif type(bound) is Gt:
            lower.append((bound.gt, ">"))
        elif type(bound) is Le and bound.le not in UNSAID:
            upper.append((bound.le, "<="))
        elif type(bound) is Lt:
            upper.append((bound.lt, "<"))
    # A type may narrow the range of another one: the strictest bound on each side counts.
    strictest = []
    if lower:
        strictest.append(sorted(lower, key=lambda end: end[0])[-1])
    if upper:
        strictest.append(min(upper, key=lambda end: end[0]))
    return " and ".join(f"{sign} {bound:,}" for bound, sign in strictest)


def exceeded(annotation: Any, value: Any) -> str | None:
    """Return the upper bound that a value exceeds, and the reason for it; None where it exceeds none."""
    for metadata, number in _numbers(annotation, value):
        for bound in metadata:
            if type(bound) is Le and number > bound.le:
                return f"expected at most {bound.le:,}{_reason(metadata)}"
    return None


def exceeded_here(annotation: Any, value: Any) -> str | None:
    """Return the bound by this machine's CPU cores that a value exceeds, with its reason; None where there is none."""
    for metadata, number in _numbers(annotation, value):
        for bound in metadata:
            if isinstance(bound, PerCore) and number > bound.count * cpu_cores():
                most = f"{bound.count * cpu_cores()} on this machine, {bound.count} for each CPU core"
                return f"expected at most {most}{_reason(metadata)}"
    return None


def _reason(metadata: tuple[Any, ...]) -> str:
    return "".join(f"; {note.reason}" for note in metadata if isinstance(note, Because))


def _numbers(annotation: Any, value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every number in a value, with the metadata of its type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and isinstance(value, int | float) and not isinstance(value, bool):
        yield arguments[1:], value
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from _numbers(member, value)
    elif origin in (list, tuple) and isinstance(value, list):
        for item in value:
            yield from _numbers(arguments[0], item)
    elif hasattr(annotation, "__dataclass_fields__") and isinstance(value, dict):
        hints = get_type_hints(annotation, include_extras=True)
        for name, item in value.items():
            yield from _numbers(hints.get(name), item)


class Slot(NamedTuple):
    """The nodes that an option takes: mechanisms made of others. Any other option takes a plain value.

    required: the class that the classes of the nodes must derive from
    late: the nodes are factories and wait for a Context
    named: there are several nodes, by name
    optional: null will do
    deferred: the node is built when the option is called: a class may read files as it is made
    or_plain: a plain value will do too, and beside nodes by name plain values by name
    """

    required: type
    late: bool
    named: bool = False
    optional: bool = False
    deferred: bool = False
    or_plain: bool = False

    def fits(self, value: Any) -> bool:
        """Return whether a value is a node, or nodes by name, whatever their classes."""
        if self.optional and value is None:
            return True
        if not self.named:
            return self._is_one(value)
        if not isinstance(value, dict) or is_node(value):
            return False
        return all(map(self._is_one, value.values()))

    def describe(self) -> str:
        """Return the nodes as text: "a TokenMixer as a node"."""
        if self.required is Kind:
            return "lists of overrides, by name"
        text = f"a {self.required.__name__} as a node"
        if self.named:
            text = f"{self.required.__name__}s as nodes, by name"
        if self.optional:
            text += " or null"
        return text

    @property
    def example(self) -> str:
        """Such a value as it is written."""
        if self.required is Kind:
            return "{far: [position=none]}"
        node = "{_target_: ..., _partial_: true}" if self.late else "{_target_: ...}"
        if self.named:
            return f"{{name: {node}}}"
        return node

    def _is_one(self, value: Any) -> bool:
        """Return whether a value is one node, and a factory where the slot needs one."""
        return is_node(value) and (value.get("_partial_") is True or not self.late)


def slot(annotation: Any) -> Slot | None:
    """Return the nodes that an option with this annotation takes; None where it takes plain values.

    Callable[[Context], TokenMixer] is a factory, Callable[[], Dataset] is a node that is built later, dict[str, ...]
    are several by name, and a module, a data set or a kind of layers is a node itself. Other
    members of a union are plain values that will do instead.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not type(None)]
        slots = []
        for member in members:
            inner = slot(member)
            if inner is not None:
                slots.append(inner)
        if not slots:
            return None
        plain = slots[0].or_plain or len(slots) < len(members)
        return slots[0]._replace(optional=type(None) in arguments, or_plain=plain)
    if origin is Callable:
        if not arguments:
            return None  # any function, which no config value can be
        product = arguments[-1]
        deferred = arguments[0] == []
        if inspect.isclass(product):
            return Slot(product, late=not deferred, deferred=deferred)
        return None
    if origin is dict:
        if not arguments:
            return None  # typing.Dict says nothing of its values
        inner = slot(arguments[1])
        if inner is None or inner.named:
            return None
        return inner._replace(named=True)
    if inspect.isclass(annotation) and issubclass(annotation, nn.Module | Kind | DataModule):
        return Slot(annotation, late=False)
    return None


def nested_node(value: Any) -> bool:
    """Return whether a value is a node, or holds one at any depth."""
    if isinstance(value, dict):
        return is_node(value) or any(map(nested_node, value.values()))
    return isinstance(value, list) and any(map(nested_node, value))


class Root:
    """The config keys that are not families.

    Options:
        seed: of weights, data order and every random stream; not part of a run's identity. `init.seed` and
            `trainer.order_seed` set those of the first weights and of the order apart
        repeat: 1, 2, ... are further runs of the same settings, whose results say whether this platform repeats one to
            the bit; null is the first
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
        repeat: Count | None = None,
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
        """Return the type as text: "int >= 1", "one of relu, gelu"."""
        return describe(self.annotation)

    @cached_property
    def slot(self) -> Slot | None:
        """The nodes that the option takes; None where it takes a plain value."""
        return slot(self.annotation)

    def problem(self, value: Any, *, on_this_machine: bool = True) -> str | None:
        """Return why `value` is invalid, or None. Only the place of nodes is checked, not their class.

        on_this_machine: also whether this machine has CPU cores enough
        """
        if self.slot is not None and self.slot.fits(value):
            return None
        if self.slot is not None and not self.slot.or_plain:
            return f"expected {self.describe()}: {self.slot.example}"
        value = self._without_nodes(value)
        adapter = _adapter(self.annotation)
        try:
            if nested_node(value):
                return f"expected {self.describe()}, not an object"
            if adapter is None:
                return None
            # As JSON, in which a tuple is a list: `strict` would refuse a list for a tuple of Python.
            taken = adapter.validate_json(json.dumps(value), strict=True)
            if type(taken) is int and type(value) is not int:  # pydantic takes true for the 1 of a Literal
                return f"expected {self.describe()}"
        except ValidationError as error:
            return exceeded(self.annotation, value) or _explain(error, self.annotation)
        except (TypeError, ValueError, RecursionError):  # a value without a JSON form, or of thousands of digits
            return f"expected {self.describe()}"
        if on_this_machine:
            return exceeded_here(self.annotation, value)
        return None

    def convert(self, value: Any) -> Any:
        """Return `value` as the constructor takes it: tuples from lists, dataclasses from mappings."""
        if self.slot is not None and not self.slot.or_plain:
            return value
        adapter = _adapter(self.annotation)
        if adapter is None:
            return value
        return adapter.validate_json(json.dumps(value), strict=True)

    def _without_nodes(self, value: Any) -> Any:
        """Return `value` without the nodes by name that may be among plain values."""
        if self.slot is None or not self.slot.named or not isinstance(value, dict) or is_node(value):
            return value
        plain = {}
        for name, item in value.items():
            if is_node(item) and self.slot.fits({name: item}):
                continue
            plain[name] = item
        return plain


@cache
def options(target: type) -> dict[str, Option]:
    """Return the options of a class by name, with the help of its docstring."""
    init = target.__init__  # type: ignore[misc]
    hints = _hints(target)
    kinds: set[Any] = {inspect.Parameter.KEYWORD_ONLY}
    # Components take ctx and factories by position and their options by keyword; classes of libraries do not
    # make this distinction.
    if not any(base.__module__.startswith("blockyard.") for base in target.__mro__):
        kinds.add(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    helps = _help(target)
    result: dict[str, Option] = {}
    for name, parameter in list(inspect.signature(init).parameters.items())[1:]:
        if parameter.kind in kinds and name != "ctx":
            default = parameter.default
            if default is inspect.Parameter.empty:
                default = REQUIRED
            key = option_name(name)
            result[key] = Option(key, hints.get(name, Any), default, helps.get(key, ""))
    return result


def _hints(target: type) -> dict[str, Any]:
    """Return type hints of the constructor. Hints of dataclass fields are resolved in the modules that declare them."""
    owner = next(base for base in target.__mro__ if "__init__" in vars(base))
    source = owner if "__dataclass_fields__" in vars(owner) else owner.__init__  # type: ignore[misc]
    try:
        return get_type_hints(source, include_extras=True)
    except (NameError, TypeError):
        return {}


def describe(annotation: Any) -> str:
    """Return a type hint as text for the user."""
    place = slot(annotation)
    if place is not None and not place.or_plain:
        return place.describe()
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{describe(args[0])} {describe_bounds(args[1:])}".strip()
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe, args))
    if origin is dict and args[0] is str:
        text = "values" if args[1] is Any else describe(args[1])
        if get_origin(args[1]) in (Union, types.UnionType):
            text = f"({text})"
        return f"a mapping of names to {text}"
    if origin in (list, tuple):
        return "a list of " + ", ".join(dict.fromkeys(describe(arg) for arg in args if arg is not Ellipsis))
    if annotation in _NAMES_OF_TYPES:
        return _NAMES_OF_TYPES[annotation]
    return getattr(annotation, "__name__", str(annotation))


def _adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """Return pydantic's validator of a type; None for a type that no config value can have, such as a module."""
    try:
        return _cached_adapter(annotation)
    except (PydanticUserError, TypeError):
        return None


@cache
def _cached_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _explain(error: ValidationError, annotation: Any) -> str:
    """Return the first problem of a validation as a message for the user."""
    first = error.errors()[0]
    if first["type"] in ("string_too_short", "string_too_long", "string_pattern_mismatch"):
        return f"expected {describe(annotation)} of 1 to 1,000 characters, and no control characters"
    where = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    if first["type"] == "unexpected_keyword_argument":
        return f"it has no field {where!r}; it has {', '.join(_fields(annotation))}"
    fields = _fields(annotation)
    for part in first["loc"]:
        if part in fields:
            return f"expected {describe(annotation)} ({part}: {first['msg'].lower()})"
    return f"expected {describe(annotation)}"


def _fields(annotation: Any) -> list[str]:
    if dataclasses.is_dataclass(annotation):
        return [field.name for field in dataclasses.fields(annotation)]
    return []


def _help(target: type) -> dict[str, str]:
    """Return the lines under "Options:" in the docstrings of a class and its bases."""
    helps: dict[str, str] = {}
    for base in reversed(target.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        match = re.search(r"^Options:\n((?:[ \t]+.*\n?|\n)+)", text + "\n", re.MULTILINE)
        if match:
            for line in re.finditer(r"^ {4}(\w+): *(.+(?:\n {5,}.+)*)", match.group(1), re.MULTILINE):
                helps[line.group(1)] = " ".join(line.group(2).split())
    return helps
