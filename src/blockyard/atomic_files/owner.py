"""The users who can change a file or folder: this user alone, or somebody else too."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def shared_reason(path: str | os.PathLike[str]) -> str | None:
    """Return the reason why another user may change `path`; None if only this user and root can.

    A link counts as well as its target. Raises OSError if nothing is there.
    """
    for status in (os.lstat(path), os.stat(path)):
        if status.st_uid not in (os.geteuid(), 0):
            return "it belongs to another user"
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & stat.S_IWOTH and not sticky:
        return "everybody may write to it"
    return None


def link_reason(path: str | os.PathLike[str]) -> str | None:
    """Return the reason why writing to `path` would change no file there; None for a regular file, or no file."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"it is a link to {os.readlink(path)}"
    if stat.S_ISREG(status.st_mode):
        return None
    return "it is not a regular file"


def database_reason(file: Path, *, only_own: bool = False) -> str | None:
    """Return the reason why SQLite may not open `file`; None if it may, or there is no file.

    SQLite writes through a link, and reads the journal beside the file as a part of it.
    only_own: also refuse a file that another user may have written
    """
    for name in ("", "-journal", "-wal", "-shm"):
        path = file.with_name(file.name + name)
        try:
            if not os.path.lexists(path) or path.is_dir():
                continue
            second = "it has a second name elsewhere" if path.lstat().st_nlink > 1 else None
            if reason := link_reason(path) or (shared_reason(path) if only_own else None) or second:
                return f"{reason} ({path.name})" if name else reason
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
    return None
