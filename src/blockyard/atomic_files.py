"""Atomic file writes: a temporary file in the same folder is synced, then renamed over the target.

A writer that is killed leaves at most a file named `.tmp-...`, which is never read and which the next start of the run
removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

TEMPORARY = ".tmp-"
_MAX_CONFIG_BYTES = 4_000_000


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


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write plain data as JSON. Raises TypeError for tensors, NumPy numbers and other objects."""
    write_text(path, json.dumps(value, indent=indent, default=_plain) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError naming the file if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Write a plain nested dict as YAML, keeping the order of keys."""
    write_text(path, yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises ValueError if it is damaged, too large or uses aliases."""
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {_MAX_CONFIG_BYTES} bytes")
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a mapping")
    return value


def remove_temporary(folder: Path) -> list[str]:
    """Remove temporary files that killed writers left in `folder` and return their names.

    The caller must hold the run's lock.
    """
    removed = []
    for path in sorted(folder.glob(f"{TEMPORARY}*")):
        with contextlib.suppress(OSError):
            path.unlink()
            removed.append(path.name)
    return removed


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


# Enums, named tuples and str subclasses are written as their base types.
_Dumper.add_multi_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))
_Dumper.add_multi_representer(Path, lambda dumper, value: dumper.represent_str(str(value)))
_Dumper.add_multi_representer(str, lambda dumper, value: dumper.represent_str(str(value)))


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        # A few nested aliases can expand to billions of nodes; files written here have none.
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases are not allowed here")
        return super().compose_node(parent, index)
