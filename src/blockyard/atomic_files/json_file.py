"""JSON files: plain data, with a checksum on request."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

from blockyard.atomic_files.read import read_bytes
from blockyard.atomic_files.replace import write_text

CHECKSUM = "checksum"
_MAX_BYTES = 1_000_000_000


def write_json(path: Path, value: Any, *, indent: int | None = 2, checked: bool = False) -> None:
    """Write plain data as JSON, numbers that are not finite as null. Raises TypeError for tensors and other objects.

    checked: add a checksum to a mapping, which `read_json` verifies and leaves out
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


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ValueError naming the file if it is damaged, OSError if it cannot be read."""
    try:
        value = json.loads(read_bytes(path, _MAX_BYTES).decode("utf-8"))
        if isinstance(value, dict) and CHECKSUM in value and value.pop(CHECKSUM) != _checksum(value):
            raise ValueError(f"its {CHECKSUM} is wrong (to edit it by hand, remove that entry)")
        return value
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _checksum(value: Any) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON does not have (RFC 8259, section 6)."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    raise TypeError(f"{type(value).__name__} is not plain data")
