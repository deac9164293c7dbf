"""Find runs by path, by name, by id or a unique part of one, or the last one."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RUN, RunFolder
from blockyard.runs.status import Status

log = logging.getLogger("blockyard")

_LISTED = 10  # runs that a message names
_SHORTEST = 3  # characters of a part of a name: one letter begins some id by chance


class NoSuchRunError(UserError):
    """Nothing below the outputs is called like this."""


@dataclass(frozen=True)
class Entry:
    """A run in a listing; its files are read on access."""

    path: Path

    @property
    def name(self) -> str:
        """`<name>-<hash>/s<seed>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @cached_property
    def folder(self) -> RunFolder:
        """The opened run. Raises UserError if its config is damaged."""
        return RunFolder.open(self.path)

    @property
    def status(self) -> Status:
        """The current status."""
        return self.folder.status

    @cached_property
    def time(self) -> float:
        """When it was last started or resumed, in seconds since 1970."""
        try:
            return (self.path / RUN).stat().st_mtime
        except OSError:
            return (self.path / CONFIG).stat().st_mtime

    @property
    def parent(self) -> str | None:
        """The name of the run that this one goes on from with a longer budget; None for a run of its own."""
        init = self.folder.config.get("init")
        path = init.get("parent") if isinstance(init, dict) else None
        if not isinstance(path, str):
            return None
        return "/".join(Path(path).parts[-2:])

    def names(self) -> tuple[str, ...]:
        """Return the names and ids that refer to the run, besides its path."""
        arm = self.path.parent.name
        label, _, digits = arm.rpartition("-")
        facts = self.folder.facts()
        recorded = (self.folder.config.get("name"), facts.get("identity"), facts.get("wandb", {}).get("id"))
        return tuple(str(name) for name in (self.name, arm, label, digits, *recorded) if name)


def runs(outputs: str | os.PathLike[str] = "outputs") -> list[Entry]:
    """Return every run under `outputs`, latest first, without the runs that force=true moved aside."""
    root = local_path(outputs, "outputs")
    if not root.is_dir():
        return []
    entries = []
    for path in root.glob(f"*/s*/{CONFIG}"):
        seed, arm = path.parent, path.parent.parent
        if not seed.name.startswith(".") and not arm.name.startswith("."):
            entries.append(Entry(seed))
    return sorted(entries, key=lambda entry: (-entry.time, entry.name))


def find(run: str | os.PathLike[str], outputs: str | os.PathLike[str] = "outputs", *, option: str = "run") -> RunFolder:
    """Open the run that `run` refers to: a path, `last`, a name, an id, or a unique part of one.

    option: that named it, for messages

    `NAME/s3` or `ID/s3` selects one seed of an arm. Of a run and the runs that go on from it with a longer budget, the
    last is taken, and a warning says so. Raises UserError listing the candidates if it is not unique.
    """
    text = str(run).strip().rstrip("/") or str(run).strip()
    if not text:
        raise UserError("no run given: expected a path, a name, an id, or last")
    path = local_path(text, option)
    try:
        if (path / CONFIG).is_file():
            return RunFolder.open(path)
        if path.is_dir():
            inside = [entry for entry in runs(path.parent) if entry.path.parent.name == path.name]
            if inside:
                return _only(inside, text, option)
    except UserError:
        raise
    except (OSError, ValueError):  # a name that is too long or has a zero byte is not a path
        pass
    entries = runs(outputs)
    if not entries:
        where = Path(os.path.expanduser(outputs)).absolute()
        raise NoSuchRunError(f"{option}={text}: no runs under {where}; give a path, or outputs=FOLDER")
    if text == "last":
        return entries[0].folder
    head, _, seed = text.rpartition("/")
    if not (head and seed[:1] == "s" and seed[1:].isdigit()):
        head = text
        seed = ""
    candidates = [entry for entry in entries if not seed or entry.path.name == seed]
    for matches in _matchers(text, head):
        matching = [entry for entry in candidates if _readable(entry) and any(map(matches, entry.names()))]
        if matching:
            return _only(matching, text, option)
    nearest = difflib.get_close_matches(head, [entry.name for entry in entries], n=3, cutoff=0.4)
    suggestion = f"available: {_listed(entries)}"
    if nearest:
        suggestion = f"nearest: {_listed([entry for entry in entries if entry.name in nearest])}"
    raise NoSuchRunError(f"{option}={text}: no such run; {suggestion}")


def _matchers(text: str, head: str) -> Iterable[Callable[[str], bool]]:
    yield lambda name: name in (text, head)
    if len(head) >= _SHORTEST:
        yield lambda name: name.startswith(head)
        yield lambda name: head in name


def _readable(entry: Entry) -> bool:
    try:
        return bool(entry.folder)
    except UserError:
        return False


def _only(entries: list[Entry], text: str, option: str) -> RunFolder:
    if len(entries) == 1:
        return entries[0].folder
    longest = _longest(entries)
    if longest is not None:
        others = [entry for entry in entries if entry is not longest]
        log.warning("%s=%s: %s, which goes on from %s", option, text, longest.name, _listed(others))
        return longest.folder
    raise UserError(f"{option}={text} matches {len(entries)} runs; choose one: {_listed(entries)}")


def _longest(entries: list[Entry]) -> Entry | None:
    """Return the run that goes on, directly or not, from all the others; None if there is no such run."""
    parents = {entry.name: entry.parent for entry in entries}
    ends = [entry for entry in entries if entry.name not in parents.values()]
    if len(ends) != 1:
        return None
    length = 0
    name = ends[0].name
    while name in parents and length <= len(entries):  # a damaged config may name a run as its own parent
        length += 1
        name = parents[name] or ""
    return ends[0] if length == len(entries) else None


def _listed(entries: list[Entry]) -> str:
    names = ", ".join(entry.name for entry in entries[:_LISTED])
    if len(entries) > _LISTED:
        return f"{names} and {len(entries) - _LISTED} more"
    return names
