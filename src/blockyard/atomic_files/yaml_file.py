"""YAML files: mappings of plain data, without aliases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from blockyard.atomic_files.replace import read_bytes, write_text

_MAX_BYTES = 4_000_000


def write_yaml(path: Path, value: dict[str, Any]) -> None:
    """Write a plain nested dict as YAML, keeping the order of keys."""
    write_text(path, yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises ValueError if it is damaged, too large or uses aliases."""
    try:
        value = yaml.load(read_bytes(path, _MAX_BYTES).decode("utf-8"), Loader=_Loader)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: expected a mapping")
    return value


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

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        others = [key for key in mapping if not isinstance(key, str)]
        if others:
            raise ValueError(f"the key {others[0]!r} is not text")
        return mapping
