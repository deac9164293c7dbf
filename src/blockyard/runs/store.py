"""Finding runs: by path, by name, by id or a unique part of one, or the last one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RUN, RunFolder
from blockyard.runs.status import Status

_SHOWN = 10


@dataclass(frozen=True)
class Entry:
    """A run as the store lists it; its files are read when they are asked for."""

    path: Path

    @property
    def name(self) -> str:
        """`<name>-<hash>/s<seed>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @cached_property
    def folder(self) -> RunFolder:
        """The run, opened. Raises UserError where its config is damaged."""
        return RunFolder.open(self.path)

    @property
    def status(self) -> Status:
        """How it stands now."""
        return self.folder.status

    @cached_property
    def time(self) -> float:
        """When it was started or taken up last, in seconds since 1970."""
        try:
            return (self.path / RUN).stat().st_mtime
        except OSError:
            return (self.path / CONFIG).stat().st_mtime

    def words(self) -> tuple[str, ...]:
        """What the run may be called by, besides its path: names and ids."""
        arm = self.path.parent.name
        label, _, digits = arm.rpartition("-")
        facts = self.folder.facts()
        wandb = facts.get("wandb")
        words = (self.name, arm, label, digits, self.folder.config.get("name"), facts.get("identity"))
        ids = (wandb.get("id"),) if isinstance(wandb, dict) else ()
        return tuple(str(word) for word in (*words, *ids) if word)


def runs(outputs: str | os.PathLike[str] = "outputs") -> list[Entry]:
    """Every run under `outputs`, the latest first. Runs that were set aside are left out."""
    root = Path(outputs).expanduser()
    if not root.is_dir():
        return []
    found = [
        Entry(path.parent)
        for path in root.glob(f"*/s*/{CONFIG}")
        if not path.parent.name.startswith(".") and not path.parent.parent.name.startswith(".")
    ]
    return sorted(found, key=lambda entry: (-entry.time, entry.name))


def find(word: str | os.PathLike[str], outputs: str | os.PathLike[str] = "outputs") -> RunFolder:
    """The one run that `word` means: a path, `last`, a name, an id, or the unique beginning of one.

    `NAME/s3` or `ID/s3` means one seed of an arm. Raises UserError that lists what it may have meant.
    """
    text = str(word).strip().rstrip("/") or str(word).strip()
    if not text:
        raise UserError("no run named: give a path, a name, an id, or last")
    path = Path(text).expanduser()
    try:
        if (path / CONFIG).is_file():
            return RunFolder.open(path)
        if path.is_dir() and (inside := [e for e in runs(path.parent) if e.path.parent.name == path.name]):
            return _only(inside, text)
    except (OSError, ValueError):  # a name too long, or with a zero byte, is no path
        pass
    entries = runs(outputs)
    if not entries:
        where = Path(outputs).expanduser().absolute()
        raise UserError(f"run={text}: there is no run under {where}; give a path, or outputs=FOLDER")
    if text == "last":
        return entries[0].folder
    head, _, seed = text.rpartition("/")
    if not (head and seed[:1] == "s" and seed[1:].isdigit()):
        head, seed = text, ""
    candidates = [entry for entry in entries if not seed or entry.path.name == seed]
    for fits in _ways(text, head):
        found = [entry for entry in candidates if _readable(entry) and any(map(fits, entry.words()))]
        if found:
            return _only(found, text)
    raise UserError(f"run={text}: there is no such run; {_suggest(head, entries)}")


def _ways(text: str, head: str) -> Iterable[Callable[[str], bool]]:
    yield lambda word: word in (text, head)
    yield lambda word: word.startswith(head)
    yield lambda word: len(head) >= 3 and head in word


def _readable(entry: Entry) -> bool:
    try:
        return bool(entry.folder)
    except UserError:
        return False


def _only(found: list[Entry], text: str) -> RunFolder:
    if len(found) == 1:
        return found[0].folder
    raise UserError(f"run={text} means {len(found)} runs; name one: {_listed(found)}")


def _suggest(text: str, entries: list[Entry]) -> str:
    near = difflib.get_close_matches(text, [entry.name for entry in entries], n=3, cutoff=0.4)
    shown = [entry for entry in entries if entry.name in near] or entries
    return f"{'nearest' if near else 'there are'}: {_listed(shown)}"


def _listed(entries: list[Entry]) -> str:
    names = [entry.name for entry in entries[:_SHOWN]]
    return ", ".join(names) + (f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else "")
