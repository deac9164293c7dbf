"""A file is replaced as a whole: a temporary file in the same folder is synced, then renamed over the target."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".tmp-"
_TEMPORARY_FILE = re.compile(rf"{re.escape(TEMPORARY)}.*-[0-9]+-[0-9a-f]+", re.S)  # a name of `replacing`


def sync_folder(folder: Path) -> None:
    """Flush renames in `folder` to disk, where the file system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, synced and renamed to it if the block ends without an error.

    On an error the temporary file is removed, `path` is left unchanged, and the error propagates.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY}{path.name[:80]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        yield temporary
        handle = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8. Raises OSError, leaving the old file, if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def move_aside(path: Path, mark: str) -> Path:
    """Rename a file, or whatever lies there, to NAME.MARK.SUFFIX, or to NAME.MARK-1.SUFFIX, ...; return that path."""
    for count in range(1000):
        aside = path.with_name(f"{path.stem}.{mark}{f'-{count}' if count else ''}{path.suffix}")
        if not os.path.lexists(aside):
            os.rename(path, aside)
            return aside
    raise OSError(errno.EEXIST, f"a thousand {mark} files are kept there; remove some", str(path))


def remove_temporary(folder: Path, *, untouched: float = 0.0) -> list[str]:
    """Remove temporary files that killed writers left in `folder` and return their names.

    untouched: only those that nobody has written to for so many seconds, where others may be writing

    The caller must hold the run's lock.
    """
    removed = []
    for path in sorted(folder.glob(f"{TEMPORARY}*")):
        with contextlib.suppress(OSError):
            if not _TEMPORARY_FILE.fullmatch(path.name):
                continue
            if untouched and time.time() - path.lstat().st_mtime < untouched:
                continue
            path.unlink()
            removed.append(path.name)
    return removed
