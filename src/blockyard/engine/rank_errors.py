"""Notes in the run folder by which other processes tell the main one why they failed, a file each.

The run's own status is for the main process to write.
"""

from __future__ import annotations

import contextlib

from blockyard.atomic_files import write_text
from blockyard.runs.folder import RunFolder

_NOTE = "error-process-{}.txt"


def write_note(folder: RunFolder, rank: int, reason: str) -> None:
    """Leave the reason why process `rank` failed; a full disk is ignored."""
    with contextlib.suppress(OSError):
        write_text(folder.path / _NOTE.format(rank), reason)


def first_note(folder: RunFolder) -> str | None:
    """The note of the process of the lowest rank, or None."""
    with contextlib.suppress(OSError):
        return next((path.read_text() for path in sorted(folder.path.glob(_NOTE.format("*")))), None)
    return None


def clear_notes(folder: RunFolder) -> None:
    """Remove the notes of an earlier attempt."""
    for path in folder.path.glob(_NOTE.format("*")):
        with contextlib.suppress(OSError):
            path.unlink()
