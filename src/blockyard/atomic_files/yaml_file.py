"""YAML files: mappings of plain data, without aliases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from blockyard.atomic_files.replace import write_text
from blockyard.atomic_files.strict_yaml import StrictLoader, StrictYamlError, load_mapping, read_text


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


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


# Enums, named tuples and str subclasses are written as their base types.
_Dumper.add_multi_representer(tuple, lambda dumper, value: dumper.represent_list(list(value)))
_Dumper.add_multi_representer(Path, lambda dumper, value: dumper.represent_str(str(value)))
_Dumper.add_multi_representer(str, lambda dumper, value: dumper.represent_str(str(value)))
