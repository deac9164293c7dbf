"""What a data module read of its files, for the next module of the same options in this process.

A command builds its data module several times: to check the config, to count the model, to train. One entry is kept,
that of the files read last. It serves as long as no file was written, and is dropped when a run takes its data. A file
that changed a moment ago is not kept: it could change once more within the resolution of the file system's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from blockyard.data._loaded import LoadedData

Value = TypeVar("Value")

_SETTLED = 2.0  # seconds since the last change of a file


class _State(NamedTuple):
    """Of a file. A file that another one replaces has another inode."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class _Key(NamedTuple):
    options: tuple[Any, ...]
    files: tuple[_State, ...]


_entry: tuple[_Key, dict[str, Any]] | None = None
_keeping = False


def read_once(data: LoadedData, name: str, files: Iterable[Path], read: Callable[[], Value]) -> Value:
    """Returns what `read` returns, or returned for the last module with these options while no file was written.

    name: of what is read, which nobody may change; files: all that `read` depends on besides the options
    """
    global _entry
    files = list(files)
    key = _key(data, files)
    if key is None:
        return read()
    if _entry is not None and _entry[0] == key and name in _entry[1]:
        value: Value = _entry[1][name]
        return value
    began = time.time()
    value = read()
    settled = all(began - state.mtime_ns / 1e9 > _SETTLED for state in key.files)
    if settled and key == _key(data, files):
        _entry = (key, {**(_entry[1] if _entry is not None and _entry[0] == key else {}), name: value})
    return value


def forget() -> None:
    """Drops the entry, unless inside `kept`."""
    global _entry
    if not _keeping:
        _entry = None


@contextmanager
def kept() -> Iterator[None]:
    """Keeps the entry inside although data is loaded, because the data module is built once more afterwards."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before


def _key(data: LoadedData, files: list[Path]) -> _Key | None:
    """None where the files cannot be told, or a class from elsewhere may read more than these."""
    if not files or not type(data).__module__.startswith("blockyard.data."):
        return None
    options = (type(data), *(repr(getattr(data, field.name)) for field in fields(data) if field.init))
    try:
        return _Key(options, tuple(_state(path) for path in files))
    except OSError:
        return None


def _state(path: Path) -> _State:
    stat = path.stat()
    return _State(str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
