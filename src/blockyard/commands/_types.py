"""The types of a command's arguments: how a value is read from text, shown in `--help` and completed in a shell."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from blockyard.config import user_folders
from blockyard.config.choices import catalog
from blockyard.config.option_text import Reader, boolean, non_empty
from blockyard.config.override_grammar import parse_allow
from blockyard.config.project_file import default_outputs
from blockyard.errors import UserError, printable

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder

CHECKPOINTS = ("best", "last", "previous")  # of a run, as `which=` names them; see `runs.load.WHICH`
SPLITS = ("test", "validation", "train")
OUTPUTS = "outputs"
# The keys of a config beside its families, of `config.schema.Root`, which imports torch.
ROOT_KEYS = ("seed", "repeat", "name", "tags", "outputs", "allow", "force")
REPEATED = "repeated"  # the key may be given several times; the value is the list of all
TYPED = "typed"  # not an argument: receives the command line as it was typed
CONFIG_DIRS = "config_dirs"  # the parameter that receives every --config-dir
T = TypeVar("T")


@dataclass(frozen=True)
class Value:
    """How a command line writes a value, in the metadata of a parameter's type.

    metavar: stands for the value in `--help`
    read: returns the value of a text, or raises ValueError with what it expects; None reads by the type
    values: what a shell completes; a function gets the arguments before and the text that is typed
    help: describes a parameter whose function does not
    everything: `*names` also takes arguments with a `=`: "overrides" of a config, or "inputs" of a run, in which a
        misspelt key is refused
    """

    metavar: str = ""
    read: Reader | None = None
    values: Sequence[str] | Callable[[Sequence[str], str], Iterable[str]] = ()
    help: str = ""
    everything: str = ""


@dataclass(frozen=True)
class FlagForm:
    """A parameter that is typed as `--name VALUE`.

    short: its short form
    bare: the value of `--name` alone. Then only an argument that `follows` accepts is taken for the value
    """

    short: str = ""
    bare: str | None = None
    follows: Callable[[str], bool] = bool


@dataclass(frozen=True)
class Keys:
    """A mapping that is typed as several arguments `PREFIXname=value`; names: which ones, None for any."""

    prefix: str
    names: tuple[str, ...] | None = None
    read: Reader = str

    def matches(self, key: str) -> bool:
        """Return whether a key belongs to the mapping."""
        if not key.startswith(self.prefix):
            return False
        return self.names is None or key.removeprefix(self.prefix) in self.names


Flag = Annotated[T, FlagForm()]


def run_names(_before: Sequence[str], _typed: str) -> list[str]:
    """Return the runs in the project's outputs, newest first: `last`, their names, their folders."""
    files = sorted(
        Path(default_outputs()).glob("*/s[0-9]*/status.json"), key=lambda path: path.stat().st_mtime, reverse=True
    )
    names = []
    folders = []
    for file in files:
        folders.append(str(file.parent))
        name = file.parts[-3].rpartition("-")[0]  # without the hash of the config
        if name and name not in names:
            names.append(name)
    return ["last", *names, *folders]


def sweep_files(_before: Sequence[str], _typed: str) -> list[str]:
    """Return the names of the sweep files in the working directory and of the shipped ones."""
    from blockyard.sweep.spec.locate import sweep_names

    return list(sweep_names())


def planned_sweeps(before: Sequence[str], typed: str) -> list[str]:
    """Return the names of the sweeps in the project's outputs, then of all sweep files."""
    plans = sorted(Path(default_outputs()).glob("sweeps/*/plan.json"))
    return [*(plan.parent.name for plan in plans), *sweep_files(before, typed)]


def of_choices(family: str) -> Callable[[Sequence[str], str], Iterable[str]]:
    """Return the completion of a value that is a choice of a family."""
    return lambda _before, _typed: catalog.choices(family)


def overrides_of(families: Sequence[str], typed: str, *, options: bool = True) -> list[str]:
    """Return choices behind `family=`, options behind `family.`, and before either the families themselves."""
    family, equals, _ = typed.partition("=")
    if equals and family in families:
        return [f"{family}={name}" for name in catalog.choices(family)]
    family, dot, _ = typed.partition(".")
    if dot and family in families and options:
        keys = {key for choice in catalog.choices(family).values() for key in choice.options}
        if family == "model":
            keys.add("size")  # the dial, which is solved and no option of any choice
        return sorted(f"{family}.{key}=" for key in keys)
    return [*(f"{name}=" for name in families), *(f"{catalog.MATCH}.{name}=" for name in catalog.MATCH_OPTIONS)]


def run_overrides(_before: Sequence[str], typed: str) -> list[str]:
    """Return the overrides of a run: its own keys, families, choices and options."""
    return [*(f"{key}=" for key in ROOT_KEYS), *overrides_of(catalog.run_keys(), typed)]


def group_overrides(_before: Sequence[str], typed: str) -> list[str]:
    """Return the overrides of every config group."""
    return overrides_of(catalog.groups(), typed)


def _checkpoint(text: str) -> str:
    name, at, average = text.partition("@")
    if name not in CHECKPOINTS or bool(at) != bool(re.fullmatch(r"\w+", average)):
        raise ValueError("best, last or previous; best@ema for the average that callbacks=ema kept")
    return text


Text = Annotated[str, Value("TEXT", non_empty)]
File = Annotated[str, Value("FILE", non_empty)]
Folder = Annotated[str, Value("FOLDER", non_empty)]
Run = Annotated[str, Value("RUN", non_empty, run_names, "a path, an id, part of a name, or last")]
Which = Annotated[str, Value("|".join((*CHECKPOINTS, "best@ema")), _checkpoint, CHECKPOINTS, "the checkpoint")]
Outputs = Annotated[str, Value("FOLDER", lambda text: text or OUTPUTS, help="where runs lie")]
Allow = Annotated[
    tuple[str, ...],
    Value(
        "[PACKAGE]",
        lambda text: tuple(parse_allow(text)),
        help="trust packages of your own that the run's config names",
    ),
]
Moved = Annotated[
    Mapping[str, str],
    Keys("data.", ("root", "path", "splits"), non_empty),
    Value("PATH", help="where the data lie now, if they have moved"),
]
Override = Annotated[
    str, Value("key=value", values=run_overrides, help="overrides of the config", everything="overrides")
]
Input = Annotated[str, Value("INPUT", everything="inputs")]
Switch = Annotated[bool, Value("true", boolean)]
ConfigDirs = Annotated[Sequence[str], CONFIG_DIRS]
TypedLine = Annotated[Sequence[str], TYPED]
Values = Annotated[Mapping[str, Any], Value()]


def find_run(name: str, outputs: str, moved: Mapping[str, str] | None = None) -> RunFolder:
    """Return the run that `run=` names, with its data where they have `moved`. Raises UserError.

    Where the name leaves it open, such as `last` or a part of a name, the run's name goes to standard error.
    """
    from blockyard.runs.store import find

    run = find(name, outputs)
    if name.strip().rstrip("/") != run.name and Path(os.path.expanduser(name)).absolute() != run.path:
        sys.stderr.write(printable(f"run={name}: {run.name}\n"))
    if moved:
        return run.with_data(dict(moved))
    return run


def input_lines(inputs: Sequence[str]) -> list[str]:
    """Return the inputs of a run, with the lines of standard input in the place of a `-`."""
    texts = list(inputs)
    if "-" in texts:
        place = texts.index("-")
        texts[place : place + 1] = [line for line in sys.stdin.read().split("\n") if line.strip()]
    return texts


def check_config_dirs(config_dirs: Sequence[str], overrides: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return the user's own config folders. Raises UserError for one that is missing or unsafe."""
    folders, problems = user_folders.folders(config_dirs, overrides)
    if problems:
        raise UserError("\n  - ".join(f"{where}: {problem}" for where, problem in problems))
    return folders
