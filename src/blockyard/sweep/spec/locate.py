"""Sweep files by path or by name: in sweeps/ here, then the shipped ones."""

from __future__ import annotations

import difflib
from pathlib import Path

from blockyard.config.catalog import PACKAGE
from blockyard.errors import UserError

SUFFIXES = (".yaml", ".yml")


def folders() -> list[Path]:
    """Where names are looked up: the user's sweeps/, and those inside an installed wheel or the checkout."""
    found = [Path("sweeps"), PACKAGE / "sweeps", PACKAGE.parents[1] / "sweeps"]
    return [folder for folder in found if folder.is_dir()]


def names() -> dict[str, Path]:
    """Every sweep file that a name means."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.iterdir()):
            if path.suffix in SUFFIXES and path.is_file():
                found.setdefault(path.stem, path)
    return found


def find(word: str) -> Path:
    """The file of a path or a name. Raises UserError that lists what there is."""
    path = Path(word).expanduser()
    if path.is_file():
        return path
    known = names()
    if word in known:
        return known[word]
    if path.is_dir():
        raise UserError(f"{word} is a folder; name a sweep file in it")
    nearest = difflib.get_close_matches(path.stem, known, n=1)
    hint = f"; nearest: {nearest[0]}" if nearest else ""
    raise UserError(f"{word}: there is no such sweep file{hint} (names: {', '.join(known) or 'none'})")
