"""YAML files: mappings of plain data, without aliases."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from blockyard.atomic_files.replace import write_text
from blockyard.atomic_files.strict_yaml import StrictLoader, StrictYamlError, load_mapping, read_text

_ENTRY = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)  # where an entry of the outer mapping begins
_NO_ENTRY = re.compile(r"^(?![A-Za-z_ #\n]|- )", re.MULTILINE)  # a line that may mean something else
_LONGEST = 10_000  # characters of an entry that is remembered


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Write a plain nested dict as YAML, keeping the order of keys."""
    write_text(path, yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file. Raises ValueError if it is damaged or refused by `strict_yaml`."""
    try:
        value = load_mapping(read_text(path, StrictLoader.limits))
    except StrictYamlError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if value is None:
        raise ValueError(f"{path} is damaged: expected a mapping")
    return value


def read_yaml_as_json(path: Path) -> str:
    """Return the mapping in a file as JSON. Raises ValueError as `read_yaml` does.

    Thousands of configs that differ in few entries are read fast: an entry of the outer mapping is parsed once for all
    files that have it with the same text.
    """
    try:
        text = read_text(path, StrictLoader.limits)
    except StrictYamlError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    parts = _entries_as_json(text)
    if parts is None:
        return json.dumps(read_yaml(path), default=str)
    return parts


def _entries_as_json(text: str) -> str | None:
    """Return the JSON of a text by its entries; None where it has to be read as a whole."""
    if not text.endswith("\n") or _NO_ENTRY.search(text[:-1]):
        return None
    before, *entries = _ENTRY.split(text)
    if before or not entries or max(map(len, entries)) > _LONGEST:
        return None
    parsed: dict[str, str] = {}
    for entry in entries:
        key_and_json = _entry_as_json(entry)
        if key_and_json is None or key_and_json[0] in parsed:  # damaged, or a key that is defined twice
            return None
        parsed[key_and_json[0]] = key_and_json[1]
    return "{" + ", ".join(parsed.values()) + "}"


@lru_cache(maxsize=4096)
def _entry_as_json(text: str) -> tuple[str, str] | None:
    """Return the key of one entry and the entry as JSON; None where the text is not a single entry."""
    try:
        value = load_mapping(text)
    except StrictYamlError:
        return None
    if value is None or len(value) != 1:
        return None
    return next(iter(value)), json.dumps(value, default=str)[1:-1]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


# Enums, named tuples and str subclasses are written as their base types.
_Dumper.add_multi_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))
_Dumper.add_multi_representer(Path, lambda dumper, value: dumper.represent_str(str(value)))
_Dumper.add_multi_representer(str, lambda dumper, value: dumper.represent_str(str(value)))
