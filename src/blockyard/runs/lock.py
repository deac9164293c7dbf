"""One process per run: an advisory file lock next to the run's folder.

The lock file is next to the folder, not in it, so that the folder can be moved while locked. The kernel releases the
lock when its holder dies, so a held lock means a live process, and no recorded pid has to be trusted.

`filelock` would replace `acquire` only: it has no note of the holder, and no shared lock. By a shared lock `held` asks
without creating or changing the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from blockyard.atomic_files import link_reason, read_bytes
from blockyard.errors import UserError

_NOTE_BYTES = 10_000
_OPEN = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_TIMEOUT = 0.5  # seconds; `held` takes the lock for microseconds
_OWNED: set[RunLock] = set()


class InUseError(UserError):
    """Another live process holds the run."""


class RunLock:
    """The exclusive right to write a run folder, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = lock_path(folder)
        self.folder = folder
        self._handle: int | None = None

    @property
    def owned(self) -> bool:
        """Return whether this object holds the lock."""
        return self._handle is not None

    def acquire(self) -> RunLock:
        """Take the lock.

        Raises InUseError naming the holder if another process has it, UserError without lock support.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            if reason := link_reason(self.path):  # the note would be written into another file
                raise UserError(f"cannot lock {self.folder}: {reason}: {self.path}; remove it")
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | _OPEN, 0o666)
            except OSError as error:
                raise UserError(f"cannot lock {self.folder}: {error.strerror}; choose outputs=FOLDER") from error
            try:
                acquired = _try_lock(handle, fcntl.LOCK_EX) and _same_file(handle, self.path)
            except OSError as error:
                os.close(handle)
                raise UserError(
                    f"the file system of {self.folder} does not support file locks ({error.strerror}); "
                    "choose outputs=FOLDER on another one"
                ) from error
            if acquired:
                break
            os.close(handle)
            if time.monotonic() > deadline:
                raise InUseError(f"{self.folder} is in use by {self._holder()}; wait for it, or stop it first")
            time.sleep(0.02)
        self._handle = handle
        _OWNED.add(self)
        # The note is informative only: a full disk must not prevent the run.
        with contextlib.suppress(OSError):
            note = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            os.ftruncate(handle, 0)
            os.pwrite(handle, note, 0)
        return self

    def release(self) -> None:
        """Release the lock. The file stays, because removing it would race with the next process."""
        if self._handle is not None:
            _OWNED.discard(self)
            # Unlock explicitly: a child forked at this moment may still hold a copy of the handle.
            with contextlib.suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_UN)
            os.close(self._handle)
            self._handle = None

    def forget(self) -> None:
        """Close the copy in a forked child, so that a worker that outlives its parent holds no lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _holder(self) -> str:
        note = holder(self.folder)
        if note is None:
            return "another process"
        process = f"process {note.get('pid')}"
        if note.get("host") != socket.gethostname():
            process += f" on {note.get('host')}"
        return process


def lock_path(folder: Path) -> Path:
    """Return the path of a run folder's lock file."""
    return folder.parent / f".{folder.name}.lock"


def held(folder: Path) -> bool:
    """Return whether a live process holds the run's lock."""
    try:
        handle = os.open(lock_path(folder), os.O_RDONLY | _OPEN)
    except OSError:
        return False
    try:
        return not _try_lock(handle, fcntl.LOCK_SH)
    except OSError:  # no lock support, so no lock
        return False
    finally:
        os.close(handle)


def holder(folder: Path) -> dict[str, object] | None:
    """Return the pid and host that the last holder wrote; None without a readable note."""
    try:
        note = json.loads(read_bytes(lock_path(folder), _NOTE_BYTES).decode())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _same_file(handle: int, path: Path) -> bool:
    # The file may have been removed and created again between opening and locking it.
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _after_fork() -> None:
    for lock in tuple(_OWNED):
        lock.forget()
    _OWNED.clear()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def exclusive(folder: Path, name: str = ".search.lock") -> Iterator[None]:
    """Hold the lock of a folder: one process at a time writes there, counts and creates trials, or makes a database.

    Hold it only briefly. name: of the file that is locked
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if reason := link_reason(path):
        raise UserError(f"cannot lock {folder}: {reason}: {path}; remove it")
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
