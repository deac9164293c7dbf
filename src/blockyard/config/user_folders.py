"""The user's own config folders (`--config-dir`, `hydra.searchpath`), and the folders of installed packages.

A folder may come from a stranger. Hydra never opens a file of such a folder by itself: it reads through
`hydra_sources.UserFolder`, which passes on the files that `user_yaml.read` finds sound, wherever links lead. A folder
with an unsound file among the choices of a family is refused as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from blockyard.config.choices import catalog
from blockyard.config.override_grammar import parse_override
from blockyard.config.untrusted import user_yaml
from blockyard.config.untrusted.installed import VARIABLE, Installed, installed
from blockyard.config.untrusted.local_path import url_problem

KEY = "hydra.searchpath"


def named(config_dirs: Iterable[str], overrides: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the folders that a command line names, as written, and the problems of the others: (place, reason)."""
    names, problems = list(config_dirs), []
    for text in overrides:
        if text.partition("=")[0] != KEY:
            continue
        try:
            value = parse_override(text).value()
        except ValueError as error:
            problems.append((KEY, f"cannot parse {text!r} ({error})"))
            continue
        if isinstance(value, list) and all(isinstance(name, str) or hasattr(name, "text") for name in value):
            names += [str(getattr(name, "text", name)).removeprefix("file://") for name in value]
        else:
            problems.append((KEY, f"{text.partition('=')[2]!r} is not a list of folders"))
    return names, problems


def folders(config_dirs: Iterable[str], overrides: Sequence[str]) -> tuple[tuple[Path, ...], list[tuple[str, str]]]:
    """Return the folders that may be composed from, and the problems of the others: (place, reason)."""
    names, problems = named(config_dirs, overrides)
    sound: list[Path] = []
    for name in names:
        folder, of_folder = _sound(name)
        problems += of_folder
        if folder is not None and not of_folder:
            sound.append(folder)
    # Packages after the user's own folders, so that the name of a choice in both is a problem of the package.
    for package in installed():
        if package.folder is None:
            of_package = [(package.name, package.problem)]
        else:
            of_package = [*_problems(package.folder), *_taken(package, sound)]
        problems += [
            (place, f"{reason}; {VARIABLE}=none leaves installed packages out") for place, reason in of_package
        ]
        if package.folder is not None and not of_package:
            sound.append(package.folder)
    return tuple(sound), problems


def _taken(package: Installed, others: Sequence[Path]) -> list[tuple[str, str]]:
    """Return a problem for each choice of an installed package with a name in use: neither may hide the other."""
    problems: list[tuple[str, str]] = []
    if package.folder is None:
        return problems
    for family in catalog.groups():
        paths = sorted((package.folder / family).glob("*.yaml"))
        taken = catalog.choices(family, tuple(others)) if paths else {}
        for path in paths:
            if path.stem in taken and taken[path.stem].path != path:
                origin = catalog.origin(taken[path.stem])
                problems.append((package.name, f"brings {family}={path.stem}, which {origin} has already"))
    return problems


def _sound(name: str) -> tuple[Path | None, list[tuple[str, str]]]:
    """Return the folder of a name, and its problems."""
    address = url_problem(name)
    if address:
        return None, [("--config-dir", address)]
    try:
        folder = Path(name).expanduser().resolve()
        if not name or not folder.is_dir():
            return None, [("--config-dir", f"{name} is not a folder")]
        return folder, _problems(folder)
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, links in a circle, a NUL byte, no home
        return None, [("--config-dir", f"{name[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}")]


def _problems(folder: Path) -> list[tuple[str, str]]:
    problems = [(str(folder / "hydra"), user_yaml.HYDRA)] if os.path.lexists(folder / "hydra") else []
    for family in catalog.groups():
        for path in sorted((folder / family).glob("*.yaml")):
            try:
                user_yaml.read(path)
            except user_yaml.UnsafeFileError as unsafe:
                problems.append((str(unsafe.path), unsafe.reason))
    return problems
