"""Reads the command line of every command: overrides (`key=value`), names, and flags."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from blockyard.config import user_folders
from blockyard.config.choices import catalog
from blockyard.config.option_text import Reader, non_empty, read_option
from blockyard.config.override_grammar import parse_allow
from blockyard.errors import UserError, did_you_mean, near, printable

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder

CHECKPOINTS = ("best", "last", "previous")  # of a run, as `which=` names them; those of `runs.load.WHICH`
WHICH = "best, last or previous; best@ema for the average that callbacks=ema kept"
RUN = "run=RUN (a path, an id, part of a name, or last)"


@dataclass
class Args:
    """A command line. Commands with flags derive a class with a field for each."""

    overrides: list[str] = field(default_factory=list)  # every argument that is not a flag, in order
    config_dirs: list[str] = field(default_factory=list)

    def pop(self, key: str, default: Any = None, reader: Reader | None = None) -> Any:
        """The value of `key=value`, removed from the overrides; the last one counts."""
        values = self.pop_all(key)
        if not values:
            return default
        return values[-1] if reader is None else read_option(key, values[-1], reader)

    def pop_all(self, key: str) -> list[str]:
        """The values of every `key=value` in order, removed from the overrides."""
        values = [text.partition("=")[2] for text in self.overrides if text.startswith(f"{key}=")]
        self.overrides = [text for text in self.overrides if not text.startswith(f"{key}=")]
        return values

    def pop_prefix(self, prefix: str) -> dict[str, str]:
        """The values of every `prefixNAME=value` by name, removed from the overrides."""
        own = [text for text in self.overrides if text.startswith(prefix)]
        self.overrides = [text for text in self.overrides if text not in own]
        return {key.removeprefix(prefix): value for key, _, value in (text.partition("=") for text in own)}

    def pop_moved(self) -> dict[str, str]:
        """The values of `data.root=`, `data.path=` and `data.splits=` by option, removed: where data lie now."""
        values = {key: self.pop(f"data.{key}", None, non_empty) for key in ("root", "path", "splits")}
        return {key: value for key, value in values.items() if value is not None}

    def pop_names(self) -> list[str]:
        """Every argument without a `=`, removed from the overrides."""
        names = [text for text in self.overrides if "=" not in text]
        self.overrides = [text for text in self.overrides if "=" in text]
        return names

    def pop_allow(self) -> list[str]:
        """The packages of `allow=[...]`, removed from the overrides."""
        return parse_allow(self.pop("allow"))

    def pop_inputs(self, command: str, keys: Sequence[str]) -> list[str]:
        """What is left, as inputs of a run, which may hold an equals sign; `-` stands for the lines of standard input.

        Raises UserError for one that looks like a misspelt key.
        """
        inputs, self.overrides = self.overrides, []
        for text in inputs:
            key = text.partition("=")[0]
            if re.fullmatch(r"[a-z]+=\S*", text) and near(key, keys):
                raise UserError(
                    f"{text}: unknown option of {command}{did_you_mean(key, keys)} (options: {', '.join(keys)})"
                )
        if "-" in inputs:
            place = inputs.index("-")
            inputs[place : place + 1] = [line for line in sys.stdin.read().split("\n") if line.strip()]
        return inputs

    def folders(self) -> tuple[Path, ...]:
        """The user's own config folders. Raises UserError on one that is missing or unsafe."""
        sound, problems = user_folders.folders(self.config_dirs, self.overrides)
        if problems:
            raise UserError("\n  - ".join(f"{where}: {what}" for where, what in problems))
        return sound

    def check_empty(self, command: str, keys: Sequence[str]) -> None:
        """Raise UserError on an override that is left after a command has taken its own `keys`."""
        if self.overrides:
            text = self.overrides[0]
            if "=" not in text and "run" in keys:
                raise UserError(
                    f"{text}: {command} takes no names; did you mean run={text}? (options: {', '.join(keys)})"
                )
            hint = did_you_mean(text.partition("=")[0], keys)
            raise UserError(f"{text}: unknown option of {command}{hint} (options: {', '.join(keys)})")


A = TypeVar("A", bound=Args)


class Parser(argparse.ArgumentParser):
    """A parser of overrides and `--config-dir`, to which a command adds its flags. Raises UserError."""

    def __init__(self, command: str, keys: Sequence[str] = ()) -> None:
        super().__init__(prog=f"blockyard {command}", add_help=False, allow_abbrev=False)
        self.keys = tuple(keys)
        self.add_argument("overrides", nargs="*")
        self.add_argument("--config-dir", "-cd", dest="config_dirs", action="append", default=[], metavar="DIR")

    def read(self, arguments: Iterable[str], kind: type[A]) -> A:
        """The command line as an object of `kind`, whose fields are the flags."""
        arguments = list(arguments)
        namespace, unknown = self.parse_known_intermixed_args(arguments)
        flag = next((text.partition("=")[0] for text in unknown if text.startswith("-")), None)
        if flag is not None:
            flags, name = self.flags(), flag.lstrip("-").replace("-", "_")
            if name.partition(".")[0] in (*catalog.run_keys(), "resume", "run", *self.keys):
                raise UserError(
                    f"{flag}: not a flag; families and options are written {name}={_value_of(flag, arguments)}"
                )
            if flag == "--config-name":
                raise UserError(f"{flag}: there is one root config; choose experiment=NAME, from --config-dir DIR too")
            raise UserError(f"{flag}: unknown flag{did_you_mean(flag, flags)} (flags: {', '.join(flags)})")
        return kind(**vars(namespace))

    def flags(self) -> list[str]:
        """The flags in their long form."""
        return [*(action.option_strings[0] for action in self._actions if action.option_strings), "--help"]

    def error(self, message: str) -> NoReturn:
        """Raise UserError in place of printing the usage and exiting."""
        named = re.fullmatch(r"argument ([^:\s/]+)(?:[\s/][^:]*)?: (.*)", message)
        flag, text = named.groups() if named else ("command line", message)
        if text == "expected one argument":
            values = next((each.choices for each in self._actions if flag in each.option_strings), None)
            text = f"a value is missing, one of {', '.join(values)}" if values else "a value is missing"
        elif text.startswith("ignored explicit argument"):
            text = "takes no value"
        raise UserError(f"{flag}: {text}")


def _value_of(flag: str, arguments: Sequence[str]) -> str:
    """What follows an unknown flag, `last` of `--resume last`; VALUE where nothing does."""
    for text, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = text.partition("=")
        if name == flag:
            value = value if equals else following
            return value if value and not value.startswith("-") and ("=" not in value or equals) else "VALUE"
    return "VALUE"


def checkpoint(text: str) -> str:
    """A reader of `which=`: a checkpoint, or an average in it."""
    name, at, average = text.partition("@")
    if name not in CHECKPOINTS or bool(at) != bool(re.fullmatch(r"\w+", average)):
        raise ValueError(WHICH)
    return text


def flag_type(reader: Reader) -> Reader:
    """A reader of `option_text` as the `type` of a flag."""

    def read(text: str) -> Any:
        try:
            return reader(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, not {text!r}") from None

    return read


def read(command: str, arguments: Iterable[str]) -> Args:
    """The command line of a command without flags of its own."""
    return Parser(command).read(arguments, Args)


def run_of(name: str | None, command: str, outputs: str, moved: Mapping[str, str] | None = None) -> RunFolder:
    """The run that `run=` names, with its data where they have `moved`. Raises UserError.

    Which run that is goes to standard error where the name leaves it open, such as `last` or a part of a name.
    """
    if not name:
        raise UserError(f"{command} needs {RUN}")
    from blockyard.runs.store import find

    run = find(name, outputs)
    if name.strip().rstrip("/") != run.name and Path(os.path.expanduser(name)).absolute() != run.path:
        sys.stderr.write(printable(f"run={name}: {run.name}\n"))
    return run.with_data(moved) if moved else run
