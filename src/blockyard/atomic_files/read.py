"""Reads a file whole, and only one that has an end: no pipe, socket or device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file that can be read to its end: no folder, pipe, socket or device, nor a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file. Never waits: opening a named pipe would, and a device has no end.

    Raises FileNotFoundError without a file, OSError for anything that is not a regular file, ValueError for one that
    is larger than `limit` bytes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if limit is not None and status.st_size > limit:
            raise ValueError(f"larger than {limit} bytes")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)
