"""The project file: `blockyard.yaml` in the working directory or above it, so that nothing is typed at each command.

    config_dirs: [myconf]      # as --config-dir; paths are relative to this file
    allow: [mypackage]         # as allow=[mypackage]; the package may lie in the file's folder
    outputs: outputs           # as outputs=outputs
    logger: [tensorboard]      # as logger=[tensorboard]

Arguments of the command line come first. BLOCKYARD_PROJECT=none reads no file. Standard error names the file that was
read. A file that another user owns, or that everybody may write to, is refused: it could name code to run. The same
holds for a link to a file, and for every link on the way to it. The paths of a linked file are relative to its target.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.atomic_files.strict_yaml import Limits, StrictYamlError, load_mapping, read_text
from blockyard.config.override_grammar import to_text
from blockyard.errors import UserError, did_you_mean, printable

NAME = "blockyard.yaml"
VARIABLE = "BLOCKYARD_PROJECT"
_LINKS = 40  # that are followed, as by the system
KEYS = ("config_dirs", "allow", "outputs", "logger")
_RUN = ("allow", "outputs")
# Command -> the keys of the file that it takes; other commands take none.
TAKES = {
    **dict.fromkeys(("train", "check", "sweep"), KEYS),
    **dict.fromkeys(("verify", "explain", "schema", "bench", "tokenize"), ("config_dirs", "allow")),
    "list": ("config_dirs",),
    **dict.fromkeys(("eval", "predict", "embed", "generate", "forecast", "inspect", "export", "soup"), _RUN),
    **dict.fromkeys(("runs", "compare", "bundle", "board"), ("outputs",)),
}
# The commands that read `outputs=` in Hydra's grammar, where most characters have to stand in quotes.
_GRAMMAR = ("train", "check")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@%-]+")


@dataclass(frozen=True)
class Project:
    """The content of a project file. Paths are absolute; None or nothing where a key is absent."""

    path: Path
    config_dirs: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    outputs: str | None = None
    logger: str | None = None

    def arguments(self, command: str, args: Sequence[str]) -> list[str]:
        """Return the arguments that the file adds to a command line: keys that the command takes and does not have."""
        keys = {text.partition("=")[0] for text in args}
        takes = [key for key in TAKES.get(command, ()) if key not in keys]
        added = [text for key in takes for text in self._as_arguments(key, grammar=command in _GRAMMAR)]
        if "resume" in keys:  # a run goes on as it was
            added = [text for text in added if not text.startswith("logger=")]
        return added

    def _as_arguments(self, key: str, *, grammar: bool) -> list[str]:
        if key == "config_dirs":
            return [text for folder in self.config_dirs for text in ("--config-dir", folder)]
        outputs = self.outputs
        if outputs is not None and grammar and not _PLAIN_PATH.fullmatch(outputs):
            outputs = to_text(outputs)
        value = {"outputs": outputs, "logger": self.logger, "allow": f"[{','.join(self.allow)}]"}[key]
        if value in (None, "[]"):
            return []
        return [f"{key}={value}"]


def with_project(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command and of the project file. Raises UserError for an unsound file."""
    path = find() if command in TAKES else None
    if path is None:
        return list(arguments)
    project = read(path)
    added = project.arguments(command, arguments)
    if added:
        shown = " ".join(text if re.fullmatch(r"[\w./=,\[\]-]+", text) else repr(text) for text in added)
        sys.stderr.write(printable(f"{_relative(path)}: {shown}\n"))
    return [*arguments, *added]


def import_folders(command: str) -> list[Path]:
    """Return the folder of the project file, if there is one; a command imports allowed packages from there."""
    path = find() if "allow" in TAKES.get(command, ()) else None
    return [] if path is None else [_followed(path).parent]


def find(start: Path | None = None) -> Path | None:
    """Return the nearest project file, in `start` (the working directory) or above it; None where there is none."""
    if os.environ.get(VARIABLE) == "none":
        return None
    try:
        folder = Path.cwd() if start is None else start
    except FileNotFoundError:
        return None
    for parent in (folder, *folder.parents):
        if os.path.lexists(parent / NAME):
            return parent / NAME
    return None


def default_outputs() -> str:
    """Return the folder of runs without `outputs=` on the command line: the project file's, or `outputs`."""
    path = find()
    return (read(path).outputs if path is not None else None) or "outputs"


def read(path: Path) -> Project:
    """Return the content of a file. Raises UserError with the file, the key and a way out."""
    path = _followed(path)
    content = _content(path)
    for key in content:
        if key not in KEYS:
            raise UserError(f"{path}: unknown key {key!r}{did_you_mean(str(key), KEYS)} (keys: {', '.join(KEYS)})")
    folders = _names(path, content, "config_dirs")
    packages = _names(path, content, "allow")
    for package in packages:
        if not re.fullmatch(r"[A-Za-z_]\w*", package):
            raise UserError(f"{path}: allow: {package!r} is not the name of a package; write [mypackage]")
    outputs, logger = content.get("outputs"), content.get("logger")
    if outputs is not None and not (isinstance(outputs, str) and outputs):
        raise UserError(f"{path}: outputs: {outputs!r} is not a folder")
    names = [logger] if isinstance(logger, str) else _names(path, content, "logger")
    loggers = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    return Project(
        path,
        config_dirs=tuple(str(_beside(path, folder)) for folder in folders),
        allow=tuple(packages),
        outputs=None if outputs is None else str(_beside(path, outputs)),
        logger=None if logger is None else loggers,
    )


def _followed(path: Path) -> Path:
    """Return the file that a path leads to, without links. Raises UserError for a link of another user on the way."""
    folder, names, links = Path(path.anchor), [*reversed(path.parts[1:])], 0
    while names:
        name = names.pop()
        step = folder.parent if name == ".." else folder / name
        try:
            status = step.lstat()
            if not stat.S_ISLNK(status.st_mode):
                folder = step
                continue
            if status.st_uid not in (os.getuid(), 0):
                raise _unsafe(step, "it is a link of another user")
            target, links = step.readlink(), links + 1
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}: {step}") from error
        if links > _LINKS:
            raise UserError(f"{path}: leads through more than {_LINKS} links")
        if target.is_absolute():
            folder = Path(target.anchor)
        names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return folder


def _unsafe(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: {reason}, and it could name code to run; {VARIABLE}=none works without it")


def _content(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path}: is not a regular file")
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH:
            reason = "everybody may write to it" if status.st_mode & stat.S_IWOTH else "it belongs to another user"
            raise _unsafe(path, reason)
        return load_mapping(read_text(path, Limits(size=100_000, depth=20))) or {}
    except StrictYamlError as error:
        raise UserError(f"{path}: {str(error)[:300]}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())[:300]}") from error


def _names(path: Path, content: Mapping[str, object], key: str) -> list[str]:
    value = content.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise UserError(f"{path}: {key}: {value!r} is not a list of names; write {key}: [name]")
    return value


def _beside(path: Path, name: str) -> Path:
    # `Path.expanduser` raises for `~name` of a user that does not exist. Such a name is the name of a folder.
    return Path(os.path.normpath(path.parent / os.path.expanduser(name)))


def _relative(path: Path) -> str:
    try:
        return os.path.relpath(path)
    except (OSError, ValueError):
        return str(path)
