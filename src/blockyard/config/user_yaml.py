"""Reads a YAML file of the user's own, which may come from a stranger, into plain data.

The content is what Hydra would read. Files that could do harm while they are read, or that Hydra ends at with a
traceback, are refused: special files, large or deeply nested ones, aliases that expand without end, tags, keys that are
defined twice, several documents, and keys of Hydra itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from blockyard.config import catalog

LARGEST = 100_000  # bytes
DEEPEST = 20  # levels of nesting
MAX_ALIASES = 20
MAX_VALUES = 20_000  # after the aliases are expanded
HYDRA = "sets keys of Hydra itself, which are taken from the command line only"


class UnsafeFile(ValueError):  # noqa: N818 - an adjective reads better where it is caught
    """A file that is not read. path: of the file; reason: what is wrong with it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def read(path: Path) -> str:
    """The text of a file whose content is sound. Raises UnsafeFile."""
    try:
        if not path.is_file():
            raise UnsafeFile(path, "is not a regular file")
        return _read(path, catalog.stamp(path))
    except OSError as error:
        raise UnsafeFile(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise error if isinstance(error, UnsafeFile) else UnsafeFile(path, " ".join(str(error).split())) from error


@lru_cache(maxsize=1024)
def _read(path: Path, _stamp: tuple[int, ...]) -> str:
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"has {size:,} bytes, at most {LARGEST:,} are allowed")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error
    if text.startswith("\ufeff"):
        raise ValueError("begins with a byte order mark; save it as UTF-8 without one")
    _check_events(text)
    content = _construct(text)
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, not `key: value` lines")
    if reaches_hydra(_package(text), content or {}):
        raise ValueError(HYDRA)
    return text


def reaches_hydra(package: str | None, content: dict[str, Any]) -> bool:
    """Whether a file names Hydra's own keys: in its package, as a key, or in its defaults list.

    This gives the plain cases a message that names the file; `hydra_config` compares what Hydra composed.
    """
    entries = content.get("defaults")
    named = [name for entry in (entries if isinstance(entries, list) else []) for name in _names(entry)]
    keys = [key.partition(".")[0] for key in content]
    return "hydra" in keys or any("hydra" in re.split(r"\W+", name) for name in [package or "", *named])


def _names(entry: Any) -> Iterator[str]:
    """The groups, packages and choices of an entry of a defaults list."""
    for text, value in entry.items() if isinstance(entry, dict) else [(entry, None)]:
        yield str(text)
        yield from map(str, value if isinstance(value, list) else [value])


def _check_events(text: str) -> None:
    """Refuse what must not be constructed. Nothing is expanded yet. Raises ValueError."""
    import yaml

    depth = aliases = documents = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            documents += isinstance(event, yaml.DocumentStartEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            aliases += isinstance(event, yaml.AliasEvent)
            tag = getattr(event, "tag", None)
            where = f"line {event.start_mark.line + 1}"
            if documents > 1:
                raise ValueError(f"{where}: has a second document; only one is read")
            if depth > DEEPEST:
                raise ValueError(f"{where}: is nested more than {DEEPEST} levels deep")
            if tag is not None:
                raise ValueError(f"{where}: {tag}: tags are not allowed; write the value alone")
    except yaml.YAMLError as error:
        raise _invalid(error) from error
    if aliases > MAX_ALIASES:
        raise ValueError(f"has {aliases} YAML aliases, at most {MAX_ALIASES} are allowed")


def _construct(text: str) -> Any:
    """The content as OmegaConf reads it. Raises ValueError."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf._utils import get_yaml_loader
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = yaml.load(text, Loader=get_yaml_loader())
        count, keys = _survey(content)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise _invalid(error) from error
    if count > MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES:,} values with its aliases expanded")
    others = [key for key in keys if not isinstance(key, str)]
    if others:
        raise ValueError(f"the key {others[0]!r} is not text; write it in quotes")
    try:
        OmegaConf.load(io.StringIO(text))
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        raise _invalid(error) from error
    return content


def _survey(content: Any) -> tuple[int, list[Any]]:
    """The number of values, at most one more than `MAX_VALUES`, and the keys of every mapping."""
    count = 0
    keys: list[Any] = []
    stack = [content]
    while stack and count <= MAX_VALUES:
        value = stack.pop()
        count += 1
        if isinstance(value, dict):
            keys += value
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return count, keys


def _package(text: str) -> str | None:
    """The package that the header names. Raises ValueError."""
    from hydra.plugins.config_source import ConfigSource

    return ConfigSource._get_header_dict(text[:512])["package"]


def _invalid(error: Exception) -> ValueError:
    text = " ".join((str(error) or type(error).__name__).split())
    return ValueError(f"is not valid YAML: {text}")
