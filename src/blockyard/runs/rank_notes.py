"""Notes in the run folder: the processes of a run tell each other why they ended, a file each.

The run's own status is for the main process to write. If that one hangs or was killed, only the notes are known.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path

from blockyard.atomic_files import read_json, write_json

_NOTE = "error-process-{}.json"


@dataclass(frozen=True)
class Note:
    """How a process of a run ended.

    reason: one sentence
    signum: of the signal that stopped it, or None
    waited: `timeout` or `lost` where it only noticed that another process does not answer, or is gone
    """

    rank: int
    reason: str
    signum: int | None = None
    waited: str | None = None

    def __str__(self) -> str:
        return f"process {self.rank}: {self.reason}"


def write_note(path: Path, note: Note) -> None:
    """Leave a note in the run folder `path`; a full disk is ignored."""
    with contextlib.suppress(OSError):
        write_json(path / _NOTE.format(note.rank), asdict(note))


def read_notes(path: Path) -> list[Note]:
    """Return the notes of a run by rank; damaged ones are left out."""
    notes = []
    for file in path.glob(_NOTE.format("*")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            notes.append(Note(**read_json(file)))
    return sorted(notes, key=lambda note: note.rank)


def clear_notes(path: Path) -> None:
    """Remove the notes of an earlier attempt."""
    for file in path.glob(_NOTE.format("*")):
        with contextlib.suppress(OSError):
            file.unlink()
