"""The keys of a library's config, each stated once and used in both directions.

A key is read as overrides of the preset, and written from a model of ours. Values that were read are stored by the
names of our options; a name without a dot is no option, but a value that rules and data need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.config.override_grammar import to_override
from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign, Library, Trained, expansion
from blockyard.weights.convert.rules import ConversionRule, per_block
from blockyard.weights.convert.settings import ABSENT, LibraryConfig, LibrarySettings, inverse

Values = dict[str, Any]
Read = Callable[[LibrarySettings, Values], Iterable[str] | None]
Write = Callable[[Trained], Any]


@dataclass(frozen=True)
class Key:
    """One or several keys of a config.

    read: adds to the values and returns overrides, if any; an unsupported value raises UserError or is noted as a
        problem
    write: returns the keys of a model of ours; None for keys that are only read
    """

    read: Read
    write: Callable[[Trained], LibraryConfig] | None = None


def key(name: str, options: str, take: Callable[[LibrarySettings, Values], Any], write: Write) -> Key:
    """Return the key with the value of each of `options`, separated by spaces."""
    names = options.split()

    def read(settings: LibrarySettings, values: Values) -> list[str]:
        value = take(settings, values)
        values.update(dict.fromkeys(names, value))
        return [to_override(option, value) for option in names if "." in option]

    return Key(read, lambda run: {name: write(run)})


def _or_default(options: str, default: Any) -> Write:
    """Return the writer of the first option; an option that is null is written as the class' default."""
    first = options.split()[0]

    def write(run: Trained) -> Any:
        value = run.option(first)
        return default if value is None and default is not ABSENT else value

    return write


def whole(
    name: str,
    options: str,
    default: Any = ABSENT,
    write: Write | None = None,
    *,
    least: int = 1,
    is_dimension: bool = True,
) -> Key:
    """Return a key of a whole number."""

    def take(settings: LibrarySettings, _: Values) -> int:
        return settings.integer(name, default, least=least, is_dimension=is_dimension)

    return key(name, options, take, write or _or_default(options, default))


def number(
    name: str, options: str, default: Any = ABSENT, write: Write | None = None, *, above: float = -math.inf
) -> Key:
    """Return a key of a finite number above a bound."""

    def take(settings: LibrarySettings, _: Values) -> float:
        return settings.number(name, default, above=above)

    return key(name, options, take, write or _or_default(options, default))


def flag(name: str, options: str, default: bool, write: Write | None = None) -> Key:
    """Return a key that is true or false."""
    usual = _or_default(options, default)
    return key(name, options, lambda settings, _: settings.flag(name, default), write or (lambda run: bool(usual(run))))


def choice(name: str, options: str, names: Mapping[str, str], default: str) -> Key:
    """Return a key of names. names: library -> ours; of several for one of ours the first is written"""
    back, first = inverse(names), options.split()[0]

    def take(settings: LibrarySettings, _: Values) -> str:
        return settings.one_of(name, names, default)

    return key(name, options, take, lambda run: back.get(str(run.option(first)), default))


def hidden(name: str, default: Any = ABSENT) -> Key:
    """Return the key of the channel mixer's hidden width. The default None is four times the width."""

    def width(settings: LibrarySettings, dim: int) -> int:
        if default is None:
            return settings.optional_integer(name) or 4 * dim
        return settings.integer(name, default)

    def read(settings: LibrarySettings, values: Values) -> list[str]:
        dim = values["model.dim"]
        values["hidden"] = width(settings, dim)
        return [expansion(values["hidden"], dim)]

    return Key(read, lambda run: {name: run.hidden})


def vocabulary(default: Any = ABSENT) -> Key:
    """Return the key of the number of token ids. Each of them can be predicted."""
    return whole("vocab_size", "vocabulary", default, lambda run: run.ctx.outputs)


def positions(name: str, default: Any = ABSENT, *, is_dimension: bool = True) -> Key:
    """Return the key of the number of positions."""
    return whole(name, "positions", default, lambda run: run.ctx.tokens.max_len, is_dimension=is_dimension)


def tied(default: bool, options: str = "head.tied") -> Key:
    """Return the key that ties the output layer to the table of token ids."""
    name = "tie_word_embeddings"
    return key(name, options, lambda settings, _: settings.is_tied(default), lambda run: bool(run.option("head.tied")))


def fixed(name: str, *allowed: Any, default: Any = ABSENT, why: str = "") -> Key:
    """Return a key that must have one of these values, the first where it is absent. It is not written."""

    def read(settings: LibrarySettings, _: Values) -> None:
        settings.must(name, *allowed, default=default, why=why)

    return Key(read)


def stated(name: str, *allowed: Any) -> Key:
    """Return a key that must have one of these values; the first one is written."""
    return Key(fixed(name, *allowed).read, lambda _: {name: allowed[0]})


def equal(name: str, option: str, default: Any = ABSENT, why: str = "", write: Write | None = None) -> Key:
    """Return a key that must have the value that was read for `option`. why: may hold it as `{}`"""

    def read(settings: LibrarySettings, values: Values) -> None:
        settings.must(name, values[option], default=default, why=why.format(values[option]))

    return Key(read, None if write is None else lambda run: {name: write(run)})


def ignored(names: str) -> Key:
    """Return keys, separated by spaces, without effect on the function of the preset."""
    return Key(lambda settings, _: settings.taken.update(names.split()))


def written(**config: Any) -> Key:
    """Return keys that are only written: constants, and functions of our model."""

    def write(run: Trained) -> LibraryConfig:
        return {name: value(run) if callable(value) else value for name, value in config.items()}

    return Key(lambda *_: None, write)


def option(name: str, value: Any) -> Key:
    """Return an option that every config of the class has."""

    def read(_: LibrarySettings, values: Values) -> list[str]:
        values[name] = value
        return [to_override(name, value)]

    return Key(read)


def overrides(*texts: str) -> Key:
    """Return overrides that hold for every config of the class."""
    return Key(lambda *_: texts)


def text(values: Values) -> DataSpec:
    """Return texts of as many tokens as there are positions."""
    return DataSpec("text", (values["positions"],))


def declared(
    preset: str,
    architecture: str,
    keys: Sequence[Key],
    rules: Callable[[Values], Iterable[ConversionRule]],
    data: Callable[[Values], DataSpec] = text,
    *,
    library: Library = "transformers",
    skipped: Callable[[str], bool] = frozenset[str]().__contains__,
    **options: Any,
) -> Converter:
    """Return the converter of a table of keys.

    rules: of the values; rules of a block have `{n}` in their names; data: of the values, which the model was made for
    skipped: whether a library weight is not read; options: further options of `Converter`
    """

    def read(settings: LibrarySettings) -> Foreign:
        values: Values = {}
        texts: list[str] = []
        for key in keys:  # in their order: a key may need the values of the keys before it
            texts += key.read(settings, values) or ()
        spec = data(values)
        outputs = spec.classes if spec.target == "class" else values.get("vocabulary")
        return Foreign(
            texts,
            per_block(rules(values), values["model.depth"]),
            spec,
            values.get("vocabulary"),
            values.get("outputs", outputs),
            lambda name: skipped(name) or name.startswith(values.get("skipped", ())),
            values.get("partly", ""),
        )

    def write(run: Trained) -> LibraryConfig:
        config: LibraryConfig = {}
        for key in keys:
            if key.write is not None:
                config |= key.write(run)
        return config

    if library == "transformers":
        options.setdefault("model_type", preset)
    return Converter(preset, library, architecture, read, None if options.get("partly") else write, **options)


SPECIAL_TOKENS = written(bos_token_id=lambda run: run.ctx.tokens.start, eos_token_id=lambda run: run.ctx.tokens.end)
