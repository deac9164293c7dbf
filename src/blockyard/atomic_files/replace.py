"""A file is replaced as a whole: a temporary file in the same folder is synced, then renamed over the target.

It is read as a whole too, and only if it has an end: no pipe, socket or device. JSON has a checksum on request.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import platform
import re
import shutil
import stat
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from blockyard.errors import UserError, printable

TEMPORARY = ".tmp-"
DELETED = ".deleted-"  # what is renamed so is removed next
CHECKSUM = "checksum"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_BYTES = 1_000_000_000
_TEMPORARY_FILE = re.compile(rf"{re.escape(TEMPORARY)}.*-[0-9]+-[0-9a-f]+", re.S)  # a name of `replacing`
_OF_PROCESS = re.compile(r".*-(?P<pid>[0-9]+)-(?P<host>[0-9a-f]{8})[0-9a-f]{8}", re.S)
_cleared: set[Path] = set()  # folders in which this process has looked for leftovers


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Return whether a file can be read to its end: it is no folder, pipe, socket or device, nor a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Return the content of a regular file. Never waits: opening a named pipe would, and a device has no end.

    Raises FileNotFoundError without a file, OSError for anything that is not a regular file, ValueError for one that
    is larger than `limit` bytes.
    """
    handle = os.open(path, _READ)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return _content(handle, status, limit)
    finally:
        os.close(handle)


def read_member(path: Path, limit: int | None = None) -> bytes:
    """Return the content of a file that `open_member` opens. Raises ValueError for more than `limit` bytes."""
    handle = open_member(path)
    try:
        return _content(handle, os.fstat(handle), limit)
    finally:
        os.close(handle)


def open_member(path: Path) -> int:
    """Open a file of a run or sweep that is copied for others, to be read; return its descriptor.

    The folder may come from a stranger. A symbolic link in it, or a second name of a file elsewhere, would put that
    file into the copy.

    Raises FileNotFoundError without a file, UserError for anything that is not a regular file with a single name,
    OSError if it cannot be opened.
    """
    try:
        handle = os.open(path, _READ | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and path.is_symlink():  # EMLINK: FreeBSD
            raise _not_copied(path, f"it is a link to {os.readlink(path)}") from None
        if error.errno == errno.ENXIO:  # a socket
            raise _not_copied(path, "it is not a regular file") from None
        raise
    status = os.fstat(handle)
    reason = None
    if not stat.S_ISREG(status.st_mode):
        reason = "it is not a regular file"
    elif status.st_nlink > 1:
        reason = "it has a second name elsewhere"
    if reason is not None:
        os.close(handle)
        raise _not_copied(path, reason)
    return handle


def _not_copied(path: Path, reason: str) -> UserError:
    return UserError(printable(f"{path} is not copied: {reason}; put a copy of the file in its place"))


def _content(handle: int, status: os.stat_result, limit: int | None) -> bytes:
    if limit is not None and status.st_size > limit:
        raise ValueError(f"larger than {limit} bytes")
    with os.fdopen(handle, "rb", closefd=False) as file:
        return file.read()


def sync_folder(folder: Path) -> None:
    """Flush renames in `folder` to disk, if the file system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def passing_name(mark: str, name: str) -> str:
    """Return a new name for a file that this process is to rename or remove, or the next one if this is killed.

    mark: TEMPORARY or DELETED
    """
    return f"{mark}{name[:80]}-{os.getpid()}-{_host()}{uuid.uuid4().hex[:8]}"


@cache
def _host() -> str:
    """Return eight digits for this machine or container, within which process ids are unique."""
    place = platform.node()
    with contextlib.suppress(OSError):
        place += f" {os.stat('/proc/self/ns/pid').st_ino}"
    return f"{zlib.crc32(place.encode()):08x}"


def leftovers(folder: Path) -> list[Path]:
    """Return files in a folder with a name of `passing_name` and a process that is gone from this machine."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if name.startswith((TEMPORARY, DELETED)) and _is_left(name)]


def _is_left(name: str) -> bool:
    match = _OF_PROCESS.fullmatch(name)
    if match is None or match["host"] != _host():
        return False
    try:
        os.kill(int(match["pid"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # a process of another user
        pass
    return False


def remove_leftovers(folder: Path) -> None:
    """Remove the leftovers of killed processes of this machine in a folder, as far as they can be removed."""
    for path in leftovers(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _clear_once(folder: Path) -> None:
    """Remove leftovers in a folder, when this process writes there for the first time."""
    if folder not in _cleared:
        _cleared.add(folder)
        remove_leftovers(folder)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, synced and renamed to it if the block ends without an error.

    On an error the temporary file is removed, `path` is left unchanged, and the error propagates.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    _clear_once(path.parent)
    temporary = path.parent / passing_name(TEMPORARY, path.name)
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


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder. If the block ends without an error it is renamed to `folder`, which is absent or empty.

    Otherwise nothing is left of it. Raises UserError if no folder can be made there, and OSError with the name of
    `folder` if it cannot be written to its end, such as on a full disk.
    """
    _clear_once(folder.parent)
    temporary = folder.parent / passing_name(TEMPORARY, folder.name)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error
    try:
        yield temporary
        if folder.is_dir():
            folder.rmdir()
        os.rename(temporary, folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8. Raises OSError, leaving the old file, if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def move_aside(path: Path, mark: str) -> Path:
    """Rename a file, or anything else there, to NAME.MARK.SUFFIX, or to NAME.MARK-1.SUFFIX, ...; return that path."""
    for count in range(1000):
        number = f"-{count}" if count else ""
        aside = path.with_name(f"{path.stem}.{mark}{number}{path.suffix}")
        if not os.path.lexists(aside):
            os.rename(path, aside)
            return aside
    raise OSError(errno.EEXIST, f"a thousand {mark} files are kept there; remove some", str(path))


def remove_temporary(folder: Path, *, untouched: float = 0.0) -> list[str]:
    """Remove temporary files that killed writers left in `folder` and return their names.

    untouched: only files that nobody has written to for so many seconds, if others may be writing

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


def write_json(path: Path, value: Any, *, indent: int | None = 2, checked: bool = False) -> None:
    """Write plain data as JSON, numbers that are not finite as null. Raises TypeError for tensors and other objects.

    checked: add a checksum to a mapping; `read_json` verifies it and leaves it out
    """
    try:
        text = json.dumps(value, indent=indent, default=_plain, allow_nan=False)
    except ValueError:
        value = _finite(value)
        text = json.dumps(value, indent=indent, default=_plain, allow_nan=False)
    if checked:
        plain = json.loads(text)
        text = json.dumps(plain | {CHECKSUM: _checksum(plain)}, indent=indent)
    write_text(path, text + "\n")


def read_json(path: Path, *, read: Callable[[Path, int], bytes] = read_bytes) -> Any:
    """Read a JSON file. Raises ValueError naming the file if it is damaged, OSError if it cannot be read.

    read: reads its content, such as `read_member`; its UserError propagates
    """
    try:
        value = json.loads(read(path, _MAX_BYTES).decode("utf-8"))
        if isinstance(value, dict) and CHECKSUM in value and value.pop(CHECKSUM) != _checksum(value):
            raise ValueError(f"its {CHECKSUM} is wrong (to edit it by hand, remove that entry)")
        return value
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _checksum(value: Any) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def _finite(value: Any) -> Any:
    """Return the value with null for NaN and infinities, which JSON lacks (RFC 8259, section 6)."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        if isinstance(value, set | frozenset):
            return sorted(value)
        return list(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def stamp(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file is written."""
    status = path.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size
