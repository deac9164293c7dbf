"""Notes that people add to a run: tags, a text, whether it is archived. No run reads it; no identity depends on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_json
from blockyard.errors import UserError, printable
from blockyard.runs.redact import redact_text

FILE = "notes.json"
MAX_NOTE = 10_000  # characters
_TAG = re.compile(r"[\w.+-]{1,40}")


@dataclass(frozen=True)
class RunNotes:
    """tags: sorted words; note: free text; archived: whether listings leave the run out."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False

    def tagged(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> RunNotes:
        """With some tags added and others removed. Raises UserError for a tag that cannot be one."""
        new = list(add)
        for tag in new:
            if not _TAG.fullmatch(tag):
                raise UserError(
                    f"tag {redact_text(printable(tag))!r}: expected up to 40 letters, digits, or any of _ . + -"
                )
            if redact_text(tag) != tag:
                raise UserError(f"tag {redact_text(tag)}: looks like a secret, and tags are written and shown")
        return replace(self, tags=tuple(sorted((set(self.tags) | set(new)) - set(remove))))


def read_notes(folder: Path) -> RunNotes:
    """The notes of a run; none where there is no file. Raises UserError if it is damaged."""
    try:
        value = read_json(folder / FILE)
    except FileNotFoundError:
        return RunNotes()
    except (ValueError, OSError) as error:
        raise UserError(f"{folder / FILE} cannot be read ({error}); remove or mend it") from error
    notes = _parsed(value)
    if notes is None:
        raise UserError(f"{folder / FILE} is damaged: expected tags, note and archived; remove or mend it")
    return notes


def write_notes(folder: Path, notes: RunNotes) -> None:
    """Replace the notes of a run. Raises UserError if they are too long or cannot be written."""
    if redact_text(notes.note) != notes.note:
        raise UserError("the note holds what looks like a secret, and notes are written and shown")
    if len(notes.note) > MAX_NOTE:
        raise UserError(f"the note has {len(notes.note):,} characters; at most {MAX_NOTE:,} are kept")
    try:
        write_json(folder / FILE, asdict(notes))
    except OSError as error:
        raise UserError(f"cannot write {folder / FILE}: {error.strerror}") from error


def _parsed(value: Any) -> RunNotes | None:
    if not isinstance(value, dict):
        return None
    tags, note, archived = value.get("tags", []), value.get("note", ""), value.get("archived", False)
    if not (isinstance(tags, list) and all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in tags)):
        return None
    if not isinstance(note, str) or not isinstance(archived, bool):
        return None
    return RunNotes(tuple(tags), note, archived)
