"""Runs that the user names, whoever made them: folders, roots of many runs, sweeps, ids, names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG
from blockyard.runs.store import Entry, find, runs
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS

_SHOWN = 8


@dataclass(frozen=True)
class Named:
    """What words mean: run folders, and the folders of sweeps.

    files: sweep files by which a sweep's folder was named; listed: those of the runs that nobody named one by
    one, but a folder of many
    """

    runs: tuple[Path, ...]
    sweeps: tuple[Path, ...]
    files: tuple[Path, ...] = ()
    listed: frozenset[Path] = frozenset()


def named(words: Sequence[str | os.PathLike[str]], outputs: str | os.PathLike[str] = "outputs") -> Named:
    """The runs and sweeps that words mean. Raises UserError for the first word that means none."""
    if not words:
        raise UserError("names no run: give a sweep, folders of runs, names or ids (`blockyard compare outputs`)")
    found: dict[Path, None] = {}
    sweeps: dict[Path, None] = {}
    files: dict[Path, None] = {}
    by_itself: set[Path] = set()
    for word in words:
        one = _meant(str(word).strip(), Path(outputs).expanduser())
        found |= dict.fromkeys(one.runs)
        sweeps |= dict.fromkeys(one.sweeps)
        files |= dict.fromkeys(one.files)
        by_itself |= set(one.runs) - one.listed
    return Named(tuple(found), tuple(sweeps), tuple(files), frozenset(found) - by_itself)


def _meant(word: str, outputs: Path) -> Named:
    path = Path(word).expanduser()
    if word and _exists(path):
        return _at(path.absolute(), word, outputs)
    if word and "/" not in word and _exists(outputs / SWEEPS / word / PLAN):
        return Named((), ((outputs / SWEEPS / word).absolute(),))
    return Named(tuple(_called(word, outputs)), ())


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a zero byte: no path
        return False


def _at(path: Path, word: str, outputs: Path) -> Named:
    if path.is_file():
        if path.suffix in (".yaml", ".yml") and path.name != CONFIG:
            folder = (outputs / SWEEPS / path.stem).absolute()
            if (folder / PLAN).is_file():
                return Named((), (folder,), (path,))
            raise UserError(f"{word} has not been run under {outputs}: blockyard sweep {word}, or outputs=FOLDER")
        if path.name in (PLAN, CONFIG):
            return _at(path.parent, word, outputs)
        raise UserError(f"{word} is a file: give a run's folder, a folder of runs, or a sweep's")
    if (path / PLAN).is_file():
        return Named((), (path,))
    if (path / CONFIG).is_file():
        return Named((path,), ())
    if own := [entry.path for entry in runs(path.parent) if entry.path.parent == path]:
        return Named(tuple(sorted(own)), ())
    inside = _below(path)
    if not inside:
        held = sorted(child.name for child in path.iterdir())[:_SHOWN]
        raise UserError(f"{word} holds no run (it has {', '.join(held) or 'nothing'}); a run has a {CONFIG}")
    return Named(tuple(sorted(inside)), (), listed=frozenset(inside))


def _below(path: Path) -> list[Path]:
    return [entry.path for entry in runs(path)]


def _called(word: str, outputs: Path) -> list[Path]:
    """The runs of a name or id: an arm's name means all its seeds, NAME/s3 one of them."""
    entries = runs(outputs)
    if word == "last" or not entries:
        return [find(word, outputs).path]
    head, _, seed = word.rpartition("/")
    if not (head and seed[:1] == "s" and seed[1:].isdigit()):
        head, seed = word, ""
    asked = [entry for entry in entries if not seed or entry.path.name == seed]
    for fits in (lambda known: known == head, lambda known: bool(head) and known.startswith(head)):
        found = [entry for entry in asked if any(map(fits, _words(entry)))]
        if found:
            return sorted(entry.path for entry in found)
    known = sorted({name for entry in entries for name in (entry.name, entry.path.parent.name)})
    sweeps = sorted(path.parent.name for path in (outputs / SWEEPS).glob(f"*/{PLAN}"))
    near = difflib.get_close_matches(word, [*sweeps, *known], n=3, cutoff=0.4) or [*sweeps, *known][:_SHOWN]
    raise UserError(f"{word}: there is no such path, run or sweep under {outputs}; there are {', '.join(near)}")


def _words(entry: Entry) -> tuple[str, ...]:
    try:
        return entry.words()
    except UserError:
        return (entry.name, entry.path.parent.name)
