"""Finds sweep files by path or by name: in sweeps/ of the working directory, then among the shipped ones."""

from __future__ import annotations

import difflib
from pathlib import Path

from blockyard.config.choices import catalog
from blockyard.config.choices.catalog import PACKAGE
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError

SUFFIXES = (".yaml", ".yml")
VERDICTS = "verdicts.json"
LONGEST = 80  # characters of an unknown name that a message shows


def folders() -> list[Path]:
    """Return the folders in which names are looked up: the user's sweeps/, then the shipped ones."""
    return [folder for folder in (Path("sweeps"), *shipped_folders()) if folder.is_dir()]


def shipped_folders() -> tuple[Path, Path]:
    """Return the folders of sweep files in an installed wheel and in a checkout."""
    return PACKAGE / "sweeps", PACKAGE.parents[1] / "sweeps"


def verdicts_file() -> Path | None:
    """Return the record of the answers to the shipped sweeps, in a wheel or a checkout; None where it is missing."""
    for path in (PACKAGE / "sweeps" / VERDICTS, PACKAGE.parents[1] / "docs" / VERDICTS):
        if path.is_file():
            return path
    return None


def sweep_names() -> dict[str, Path]:
    """Return every sweep file that can be named, by its name."""
    paths: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.iterdir()):
            if path.suffix in SUFFIXES and path.is_file():
                paths.setdefault(path.stem, path)  # the user's file before a shipped one of the same name
    return paths


def find_sweep(name: str) -> Path:
    """Return the sweep file with this path or name. Raises UserError with the nearest names."""
    named = sweep_names()
    path = local_path(name)
    try:
        is_file = path.is_file()
        is_folder = path.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, or the home of a user that does not exist
        is_file = is_folder = False
    if is_file:
        return path
    if name in named:
        return named[name]
    if is_folder:
        raise UserError(f"{name} is a folder; name a sweep file in it")
    shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
    if path.suffix in SUFFIXES or path.parent != Path("."):
        problem = f"no sweep file {shown!r} in {path.absolute().parent}"
    elif name in catalog.choices("experiment"):
        problem = (
            f"{shown!r} is an experiment: `blockyard train experiment={name}`, or `base:` of a sweep file names it"
        )
    else:
        problem = f"unknown sweep {shown!r}"
    nearest = difflib.get_close_matches(path.stem, named, n=3)
    hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    raise UserError(f"{problem}{hint} (see `blockyard list sweeps`)")
