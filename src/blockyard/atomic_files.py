"""Files that are either old or new and never half: written beside, synced, then put in place.

A writer that dies leaves at most a file named `.tmp-...`, which nobody reads and which the next
start of the run sweeps away.
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
    """Make renames in `folder` survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; synced and renamed to it if the block ends without an error.

    On any error the temporary file is removed, `path` stays what it was, and the error goes on.
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
    """Write `text` as UTF-8. Raises OSError, and leaves the old file, where that is not possible."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="replace"))


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write plain data as JSON; tensors and numpy numbers are not plain data and raise TypeError."""
    write_text(path, json.dumps(value, indent=indent, default=_plain) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote. Raises ValueError naming the file where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Write a plain nested dict as YAML, keys in the order given."""
    write_text(path, yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: Path) -> dict[str, Any]:
    """What `write_yaml` wrote. Raises ValueError where it is damaged, oversized or has aliases."""
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError("larger than any config")
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds no mapping")
    return value


def sweep(folder: Path) -> list[str]:
    """Remove what killed writers left in `folder`; the names. Only for who holds the run's lock."""
    swept = []
    for path in sorted(folder.glob(f"{TEMPORARY}*")):
        with contextlib.suppress(OSError):
            path.unlink()
            swept.append(path.name)
    return swept


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


# Enums, named tuples and str subclasses of the config are written as what they are made of.
_Dumper.add_multi_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))
_Dumper.add_multi_representer(Path, lambda dumper, value: dumper.represent_str(str(value)))
_Dumper.add_multi_representer(str, lambda dumper, value: dumper.represent_str(str(value)))


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        # A few nested aliases stand for billions of nodes; our own files have none.
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases are not allowed here")
        return super().compose_node(parent, index)
