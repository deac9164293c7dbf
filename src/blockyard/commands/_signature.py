"""A command is a function: its arguments, their help and their completion follow from its signature and docstring.

    @command()
    def soup(*runs: Run, out: Folder, weights: Literal["uniform", "greedy"] = "uniform", ...) -> None:

    name            before the star: an argument without a `=`, which has to be there
    *names          the other arguments without a `=`; with `everything`, those with a `=` too
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


def command(*, word: str = "", key: str = "") -> Callable[[F], F]:
    """Make a function a command of its module's name.

    word: the first argument that chooses it among the functions of the module; key: the key that does
    """

    def register(function: F) -> F:
        _FUNCTIONS.setdefault(function.__module__, []).append(Function(function, word, key))
        return function

    return register


def functions_of(name: str) -> list[Function]:
    """Return the functions of a command, the one that is chosen without a word or key first."""
    module = f"blockyard.commands.{MODULES.get(name, name)}"
    importlib.import_module(module)
    return sorted(_FUNCTIONS[module], key=lambda function: bool(function.word or function.key))


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
        return next((each for each in self.metadata if isinstance(each, kind)), None)

    @property
    def flag(self) -> FlagForm | None:
        """How a flag is typed; None for a key or a name."""
        form: FlagForm | None = self.meta(FlagForm)
        return form

    @property
    def value(self) -> Value:
        """How the value is written: an outer Value replaces what an inner one says."""
        merged = Value()
        for value in self.metadata:
            if isinstance(value, Value):
                merged = replace(merged, **{field: said for field, said in vars(value).items() if said})
        return merged

    @property
    def is_keyword(self) -> bool:
        """Return whether the parameter is read from `key=value`."""
        hidden = CONFIG_DIRS in self.metadata or TYPED in self.metadata
        return self.kind is inspect.Parameter.KEYWORD_ONLY and self.flag is None and not hidden

    @property
    def key(self) -> str:
        """The parameter as it is typed."""
        bare = self.name.removesuffix("_")
        return f"--{bare.replace('_', '-')}" if self.flag else bare

    @property
    def keys(self) -> list[str]:
        """The keys that are typed: several of a mapping, none of one that takes any."""
        keys: Keys | None = self.meta(Keys)
        if keys is None:
            return [self.key]
        return [f"{keys.prefix}{name}" for name in keys.names or ()]

    @property
    def required(self) -> bool:
        """Return whether the parameter has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def help(self) -> str:
        """The help of the parameter, and its default."""
        text = self.own_help or self.value.help
        shown = "true" if self.default is True else self.default
        if isinstance(shown, tuple):
            shown = ",".join(map(str, shown))
        plain = isinstance(shown, str | int | float) and shown is not False and shown != ""
        if plain and not self.required:
            return f"{text}; default {shown}"
        return text

    @property
    def reader(self) -> Reader:
        """The reader of the value's text."""
        return _reader_of(self.annotation)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal."""
        return _choices(self.annotation)

    @property
    def metavar(self) -> str:
        """Stands for the value in `--help`."""
        if self.value.metavar:
            return self.value.metavar
        if self.reader is boolean:
            return "false" if self.default is True else "true"
        names = {int: "N", float: "X", str: "TEXT"}
        return "|".join(self.choices) or names.get(_plain_type(self.annotation), "VALUE")

    @property
    def typed(self) -> str:
        """The parameter with its value, as `--help` shows it."""
        keys: Keys | None = self.meta(Keys)
        if self.flag:
            bare = f"[{self.metavar}]" if self.flag.bare is not None else self.metavar
            short = f"{self.flag.short}, " if self.flag.short else ""
            if self.reader is boolean:
                return f"{short}{self.key}"
            return f"{short}{self.key} {bare}"
        if keys is not None:
            return f"{keys.prefix}{'|'.join(keys.names) if keys.names else 'OPTION'}={self.value.metavar or 'VALUE'}"
        if self.kind is inspect.Parameter.KEYWORD_ONLY:
            return f"{self.key}={self.metavar}"
        return self.value.metavar or self.key.upper()


@dataclass(frozen=True)
class Function:
    """A function that is a command, or one of the functions of a command."""

    call: Callable[..., Any]
    word: str
    key: str

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters of the signature."""
        return list(_parameters(self.call))

    @cached_property
    def groups(self) -> dict[str, type]:
        """The dataclasses of parameters by name."""
        hints = get_type_hints(self.call)
        return {each.group: hints[each.group] for each in self.parameters if each.group}

    @cached_property
    def positional(self) -> list[Parameter]:
        """The parameters before the star."""
        return [each for each in self.parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]

    @cached_property
    def rest(self) -> Parameter | None:
        """The parameter with the star."""
        return next((each for each in self.parameters if each.kind is inspect.Parameter.VAR_POSITIONAL), None)

    @cached_property
    def flags(self) -> list[Parameter]:
        """The parameters that are flags."""
        return [each for each in self.parameters if each.flag]

    @cached_property
    def keywords(self) -> list[Parameter]:
        """The parameters that are read from `key=value`."""
        return [each for each in self.parameters if each.is_keyword]

    def takes(self, key: str) -> bool:
        """Return whether a key is one of the function's own."""
        for parameter in self.keywords:
            keys: Keys | None = parameter.meta(Keys)
            if keys.matches(key) if keys is not None else key == parameter.key:
                return True
        return False

    @property
    def example(self) -> str:
        """The first example of the docstring."""
        match = re.search(r"^Examples?:\n\s+(.+)$", inspect.getdoc(self.call) or "", re.MULTILINE)
        return match[1] if match else ""

    @property
    def chosen_by(self) -> str:
        """The argument that chooses the function: `write=true`, `resolution=`."""
        is_switch = any(each.key == self.key and each.reader is boolean for each in self.parameters)
        return f"{self.key}={'true' if is_switch else ''}"


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


def _choices(annotation: Any) -> tuple[str, ...]:
    plain = _plain_type(annotation)
    if get_origin(plain) is Literal:
        return get_args(plain)
    return ()


def _reader_of(annotation: Any) -> Reader:
    """Return the reader of a type: that of its metadata, else by the type and its bounds."""
    metadata = list(_metadata(annotation))
    for each in reversed(metadata):
        if isinstance(each, Value) and each.read is not None:
            return each.read
    plain = _plain_type(annotation)
    least: Any = next((each.ge for each in metadata if isinstance(each, Ge)), 0)
    above: Any = next((each.gt for each in metadata if isinstance(each, Gt)), None)
    most: Any = next((each.le for each in metadata if isinstance(each, Le)), None)
    if get_origin(plain) is Literal:
        return one_of(*get_args(plain))
    if plain is int:
        return integer(least, most)
    if plain is float:
        limit = float("inf") if most is None else most
        return number(least if above is None else above, limit, exclusive=above is not None)
    return boolean if plain is bool else str


def _option_helps(docstring: str) -> dict[str, str]:
    """Return the lines under "Options:" of a docstring by name."""
    section = OPTIONS.search(docstring)
    lines = re.finditer(r"^ {4}(\w+): *(.+(?:\n {5,}.+)*)", section[1] if section else "", re.MULTILINE)
    return {line[1]: " ".join(line[2].split()) for line in lines}
