"""Resolve paths, names and ids on a command line to run folders and sweep folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.config.local_path import local_path
from blockyard.errors import UserError, near
from blockyard.runs.folder import CONFIG
from blockyard.runs.store import Entry, find, runs
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS

_MAX_LISTED = 6


@dataclass(frozen=True)
class Resolved:
    """Run folders and sweep folders.

    files: sweep files by which a sweep was named
    listed: the runs that came with a folder of many instead of being named one by one
    """

    runs: tuple[Path, ...]
    sweeps: tuple[Path, ...]
    files: tuple[Path, ...] = ()
    listed: frozenset[Path] = frozenset()


def resolve(args: Sequence[str | os.PathLike[str]], outputs: str | os.PathLike[str] = "outputs") -> Resolved:
    """Return the runs and sweeps that the arguments name. Raises UserError for the first that names none."""
    if not args:
        raise UserError("no run given: name a sweep, run folders, names or ids (`blockyard compare outputs`)")
    paths: dict[Path, None] = {}
    sweeps: dict[Path, None] = {}
    files: dict[Path, None] = {}
    explicit: set[Path] = set()
    for arg in args:
        one = _resolve_one(str(arg).strip(), local_path(outputs, "outputs"))
        paths |= dict.fromkeys(one.runs)
        sweeps |= dict.fromkeys(one.sweeps)
        files |= dict.fromkeys(one.files)
        explicit |= set(one.runs) - one.listed
    return Resolved(tuple(paths), tuple(sweeps), tuple(files), frozenset(paths) - explicit)


def _resolve_one(arg: str, outputs: Path) -> Resolved:
    path = local_path(arg)
    if arg and _exists(path):
        return _from_path(path.absolute(), arg, outputs)
    if arg and "/" not in arg and _exists(outputs / SWEEPS / arg / PLAN):
        return Resolved((), ((outputs / SWEEPS / arg).absolute(),))
    return Resolved(tuple(_by_name(arg, outputs)), ())


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a zero byte: not a path
        return False


def _from_path(path: Path, arg: str, outputs: Path) -> Resolved:
    if not path.is_dir():
        if path.suffix in (".yaml", ".yml") and path.name != CONFIG:
            folder = (outputs / SWEEPS / path.stem).absolute()
            if (folder / PLAN).is_file():
                return Resolved((), (folder,), (path,))
            raise UserError(
                f"{arg} has not been run under {outputs}: run `blockyard sweep {arg}`, or pass outputs=FOLDER"
            )
        if path.name in (PLAN, CONFIG):
            return _from_path(path.parent, arg, outputs)
        raise UserError(f"{arg} is a file: pass a run's folder, a folder of runs, or a sweep's folder")
    if (path / PLAN).is_file():
        return Resolved((), (path,))
    if (path / CONFIG).is_file():
        return Resolved((path,), ())
    if seeds := [entry.path for entry in runs(path.parent) if entry.path.parent == path]:
        return Resolved(tuple(sorted(seeds)), ())
    inside = [entry.path for entry in runs(path)]
    if not inside:
        content = ", ".join(sorted(child.name for child in path.iterdir())[:_MAX_LISTED])
        raise UserError(f"{arg} contains no run (a folder with a {CONFIG}); it contains {content or 'nothing'}")
    return Resolved(tuple(sorted(inside)), (), listed=frozenset(inside))


def _by_name(arg: str, outputs: Path) -> list[Path]:
    """Return the runs of a name or id: an arm's name stands for all its seeds, NAME/s3 for one of them."""
    entries = runs(outputs)
    if not entries:
        raise UserError(f"{arg}: no run, sweep or folder of this name; {outputs.absolute()} holds none")
    if arg == "last":
        return [find(arg, outputs).path]
    head, _, seed = arg.rpartition("/")
    if not (head and seed[:1] == "s" and seed[1:].isdigit()):
        head, seed = arg, ""
    candidates = [entry for entry in entries if not seed or entry.path.name == seed]
    for matches in (lambda name: name == head, lambda name: bool(head) and name.startswith(head)):
        selected = [entry.path for entry in candidates if any(map(matches, _names(entry)))]
        if selected:
            return sorted(selected)
    names = sorted({name for entry in entries for name in (entry.name, entry.path.parent.name)})
    if os.path.isdir(outputs / SWEEPS / head):  # False, too, for a name that no file can have
        raise UserError(f"{outputs / SWEEPS / head} has no {PLAN}; `blockyard sweep` of its file writes it again")
    sweeps = sorted(path.parent.name for path in (outputs / SWEEPS).glob(f"*/{PLAN}"))
    nearest = near(arg, [*sweeps, *names]) or [*sweeps, *names][:_MAX_LISTED]
    raise UserError(f"{arg}: no such path, run or sweep under {outputs}; there are {', '.join(nearest)}")


def _names(entry: Entry) -> tuple[str, ...]:
    try:
        return entry.names()
    except UserError:
        return (entry.name, entry.path.parent.name)
