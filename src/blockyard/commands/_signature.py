"""A command is a function: its arguments, their help and their completion follow from its signature and docstring.

    @command()
    def soup(*runs: Run, out: Folder, weights: Literal["uniform", "greedy"] = "uniform", ...) -> None:

    name            before the star: a required argument without a `=`
    *names          the other arguments without a `=`; with `everything`, other arguments with a `=` too
    key=value       a parameter behind the star, in order; `key_` stands for a key that is a name of Python's
    --flag value    such a parameter of type Flag[...]

The docstring is the text of `--help`; its section "Options" describes parameters beyond the help of their types. A
module may have several functions: one is chosen by the first argument (`word`) or by a key that is given (`key`).
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le

from blockyard.commands import MODULES
from blockyard.commands._types import CONFIG_DIRS, TYPED, FlagForm, Keys, Value
from blockyard.config.option_text import Reader, boolean, integer, number, one_of

OPTIONS = re.compile(r"^Options:\n((?:[ ]{4,}.*\n?)+)", re.MULTILINE)
F = TypeVar("F", bound=Callable[..., Any])
_FUNCTIONS: dict[str, list[Function]] = {}  # by module


def command(*, subcommand: str = "", key: str = "") -> Callable[[F], F]:
    """Make a function a command of its module's name.

    subcommand: the first argument that chooses the function among those of its module
    key: the key that chooses it
    """

    def register(function: F) -> F:
        _FUNCTIONS.setdefault(function.__module__, []).append(Function(function, subcommand, key))
        return function

    return register


def functions_of(name: str) -> list[Function]:
    """Return the functions of a command, the one that is chosen without a subcommand or key first."""
    module = f"blockyard.commands.{MODULES.get(name, name)}"
    importlib.import_module(module)
    return sorted(_FUNCTIONS[module], key=lambda function: bool(function.subcommand or function.key))


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command's function."""

    name: str
    annotation: Any
    default: Any
    kind: Any
    own_help: str
    group: str = ""  # the parameter whose dataclass has this one as a field

    @cached_property
    def metadata(self) -> list[Any]:
        """The metadata of the type, and of the types in a union."""
        return list(_metadata(self.annotation))

    def meta(self, kind: type) -> Any:
        """Return the metadata of a class; None where the type has none."""
        return next((entry for entry in self.metadata if isinstance(entry, kind)), None)

    @property
    def flag(self) -> FlagForm | None:
        """The form of a flag; None for a key or a name."""
        form: FlagForm | None = self.meta(FlagForm)
        return form

    @property
    def value(self) -> Value:
        """The form of the value, merged from all Values of the type: the fields of an outer one win."""
        merged = Value()
        for value in self.metadata:  # from the inside out
            if isinstance(value, Value):
                fields = {name: field for name, field in vars(value).items() if field}
                merged = replace(merged, **fields)
        return merged

    @property
    def is_keyword(self) -> bool:
        """Return whether the parameter is read from `key=value`."""
        hidden = CONFIG_DIRS in self.metadata or TYPED in self.metadata
        return self.kind is inspect.Parameter.KEYWORD_ONLY and self.flag is None and not hidden

    @property
    def key(self) -> str:
        """The parameter as it is typed."""
        name = self.name.removesuffix("_")
        if self.flag:
            return f"--{name.replace('_', '-')}"
        return name

    @property
    def keys(self) -> list[str]:
        """The keys that are typed: several of a mapping, none of one that takes any."""
        keys: Keys | None = self.meta(Keys)
        if keys is None:
            return [self.key]
        return [f"{keys.prefix}{name}" for name in keys.names or ()]

    def takes(self, key: str) -> bool:
        """Return whether an argument `key=value` is for this parameter."""
        keys: Keys | None = self.meta(Keys)
        if keys is not None:
            return keys.matches(key)
        return key == self.key

    @property
    def required(self) -> bool:
        """Return whether the parameter has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def help(self) -> str:
        """The help of the parameter, and its default."""
        text = self.own_help or self.value.help
        default = self.default
        if default is True:
            default = "true"
        elif isinstance(default, tuple):
            default = ",".join(map(str, default))
        # Neither `False`, as a switch that is not given is off, nor the class that marks a missing default.
        if isinstance(default, str | int | float) and default is not False and default != "":
            return f"{text}; default {default}"
        return text

    @property
    def reader(self) -> Reader:
        """The reader of the value's text."""
        return _reader_of(self.annotation)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; none of another type."""
        plain = _plain_type(self.annotation)
        if get_origin(plain) is Literal:
            return get_args(plain)
        return ()

    @property
    def metavar(self) -> str:
        """The name of the value in `--help`; of a switch the value that changes the default."""
        if self.value.metavar:
            return self.value.metavar
        if self.reader is boolean:
            return "false" if self.default is True else "true"
        if self.choices:
            return "|".join(self.choices)
        names = {int: "N", float: "X", str: "TEXT"}
        return names.get(_plain_type(self.annotation), "VALUE")

    @property
    def typed(self) -> str:
        """The parameter with its value, as `--help` shows it."""
        keys: Keys | None = self.meta(Keys)
        if self.flag:
            text = self.key
            if self.flag.short:
                text = f"{self.flag.short}, {text}"
            if self.reader is boolean:
                return text
            if self.flag.bare is not None:  # the value may be left out
                return f"{text} [{self.metavar}]"
            return f"{text} {self.metavar}"
        if keys is not None:
            names = "|".join(keys.names or ("OPTION",))
            return f"{keys.prefix}{names}={self.value.metavar or 'VALUE'}"
        if self.kind is inspect.Parameter.KEYWORD_ONLY:
            return f"{self.key}={self.metavar}"
        return self.value.metavar or self.key.upper()


@dataclass(frozen=True)
class Function:
    """A function that is a command, or one of the functions of a command."""

    call: Callable[..., Any]
    subcommand: str
    key: str

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters of the signature."""
        return list(_parameters(self.call))

    @cached_property
    def groups(self) -> dict[str, type]:
        """The dataclasses of parameters by name."""
        hints = get_type_hints(self.call)
        return {parameter.group: hints[parameter.group] for parameter in self.parameters if parameter.group}

    @cached_property
    def positional(self) -> list[Parameter]:
        """The parameters before the star."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [parameter for parameter in self.parameters if parameter.kind is kind]

    @cached_property
    def rest(self) -> Parameter | None:
        """The parameter with the star."""
        kind = inspect.Parameter.VAR_POSITIONAL
        return next((parameter for parameter in self.parameters if parameter.kind is kind), None)

    @cached_property
    def flags(self) -> list[Parameter]:
        """The parameters that are flags."""
        return [parameter for parameter in self.parameters if parameter.flag]

    @cached_property
    def keywords(self) -> list[Parameter]:
        """The parameters that are read from `key=value`."""
        return [parameter for parameter in self.parameters if parameter.is_keyword]

    def takes(self, key: str) -> bool:
        """Return whether a key is one of the function's own."""
        return any(parameter.takes(key) for parameter in self.keywords)

    @property
    def example(self) -> str:
        """The first example of the docstring."""
        match = re.search(r"^Examples?:\n\s+(.+)$", inspect.getdoc(self.call) or "", re.MULTILINE)
        return match[1] if match else ""

    @property
    def chosen_by(self) -> str:
        """The argument that chooses the function: `write=true`, `resolution=`."""
        for parameter in self.parameters:
            if parameter.key == self.key and parameter.reader is boolean:
                return f"{self.key}=true"
        return f"{self.key}="


def _parameters(call: Callable[..., Any], group: str = "") -> Iterator[Parameter]:
    """Yield the parameters of a function; in place of one that is a dataclass, the dataclass's fields."""
    hints = get_type_hints(call, include_extras=True)
    helps = _option_helps(inspect.getdoc(call) or "")
    for name, parameter in inspect.signature(call).parameters.items():
        if is_dataclass(hints[name]) and isinstance(hints[name], type):
            yield from _parameters(hints[name], name)
        else:
            kind = inspect.Parameter.KEYWORD_ONLY if group else parameter.kind
            own_help = helps.get(name.removesuffix("_"), "")
            yield Parameter(name, hints[name], parameter.default, kind, own_help, group)


def _metadata(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        yield from _metadata(inner)
        yield from metadata
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _metadata(member)


def _plain_type(annotation: Any) -> Any:
    """Return a type without its metadata and without None."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain_type(next(member for member in get_args(annotation) if member is not type(None)))
    return annotation


def _reader_of(annotation: Any) -> Reader:
    """Return the reader of a type: from its metadata, else by the type and its bounds."""
    least: Any = 0
    above: Any = None
    most: Any = None
    metadata = list(_metadata(annotation))
    for entry in reversed(metadata):  # an outer reader wins
        if isinstance(entry, Value) and entry.read is not None:
            return entry.read
        if isinstance(entry, Ge):
            least = entry.ge
        elif isinstance(entry, Gt):
            above = entry.gt
        elif isinstance(entry, Le):
            most = entry.le
    plain = _plain_type(annotation)
    if get_origin(plain) is Literal:
        return one_of(*get_args(plain))
    if plain is int:
        return integer(least, most)
    if plain is float:
        if most is None:
            most = float("inf")
        if above is not None:
            return number(above, most, exclusive=True)
        return number(least, most)
    if plain is bool:
        return boolean
    return str


def _option_helps(docstring: str) -> dict[str, str]:
    """Return the lines under "Options:" of a docstring by name."""
    section = OPTIONS.search(docstring)
    if section is None:
        return {}
    helps = {}
    for option in re.finditer(r"^ {4}(\w+): *(.+(?:\n {5,}.+)*)", section[1], re.MULTILINE):
        helps[option[1]] = " ".join(option[2].split())
    return helps
