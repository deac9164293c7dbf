"""Bounds what `${...}` may expand to, before OmegaConf resolves it.

A text that names another twice, which names another twice, ... takes exponential time and memory. An interpolation
names one key (`${model.dim}`, `${.sibling}`) or one environment variable (`${oc.env:NAME}`); then the size of the
result can be computed without expanding it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from blockyard.contracts import Issue

LARGEST = 1_000_000  # characters and values of a resolved config
_ONE = re.compile(r"\$\{([^${}]*)\}")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\\$\{")  # an odd number of backslashes in front, as OmegaConf reads it
_RESOLVER = re.compile(r"\s*oc\.env\s*:")

Path = tuple[str, ...]


class _UnboundedError(ValueError):
    pass


def problems(plain: Any) -> Iterator[Issue]:
    """The issue of a config whose interpolations have another form, lead in a circle, or expand without end.

    plain: the config as plain data, unresolved
    """
    try:
        if _size(plain, (), plain, {}) > LARGEST:
            raise _UnboundedError("its interpolations expand to more than a million values")
    except _UnboundedError as refused:
        yield Issue("config", str(refused))


def _size(value: Any, path: Path, root: Any, sizes: dict[Path, int | None]) -> int:
    """The size of a value once it is resolved. sizes: what is known by path; None while it is computed."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return 1 + sum(_size(item, (*path, str(key)), root, sizes) for key, item in items)
    if not isinstance(value, str):
        return 1
    read = _ESCAPED.sub("$ ", value)  # the $ keeps an interpolation around it from being taken for a simple one
    if "${" not in read:
        return 1 + len(value)
    if path in sizes:
        resolved = sizes[path]
        if resolved is None:
            raise _UnboundedError(f"{'.'.join(path)}: {value!r} leads back to itself")
        return resolved
    sizes[path] = None
    names = _ONE.findall(read)
    if len(names) != read.count("${") or any(":" in name and not _RESOLVER.match(name) for name in names):
        raise _UnboundedError(
            f"{'.'.join(path)}: {value[:80]!r} is not allowed; an interpolation names one key, such as "
            "${model.dim}, or a variable, ${oc.env:NAME}, and \\${ stands for ${ itself"
        )
    targets = [_target(name.strip(), path) for name in names if ":" not in name]
    sizes[path] = size = len(value) + sum(_size(_at(target, root), target, root, sizes) for target in targets)
    if size > LARGEST:
        raise _UnboundedError(f"{'.'.join(path)}: {value[:80]!r} expands to more than a million values")
    return size


def _target(name: str, path: Path) -> Path:
    """The key that an interpolation at a path names; leading dots go up from its parent."""
    inner = name.lstrip(".")
    levels = len(name) - len(inner)
    parts = tuple(part for part in re.split(r"[.\[\]]", inner) if part)
    return (*path[: max(len(path) - levels, 0)], *parts) if levels else parts


def _at(path: Path, root: Any) -> Any:
    """The value at a path; None where there is none, which OmegaConf reports."""
    value = root
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
