"""Sets numbers, flags and names in a composed config without OmegaConf, which takes a hundred times longer.

Of thousands of arms of a sweep most differ in such values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockyard.config.override_grammar import parse_override


def literals(values: Sequence[str]) -> list[tuple[list[str], Any]] | None:
    """Values (`++key=value`) as (path, value), where all are literals; None where one needs OmegaConf."""
    assignments = []
    for text in values:
        try:
            override = parse_override(text)
        except ValueError:
            return None
        value = override.value()
        is_literal = value is None or type(value) in (bool, int, float) or (type(value) is str and value.isalnum())
        if not is_literal:
            return None
        assignments.append((override.key_or_group.split("."), value))
    return assignments


def assign(config: dict[str, Any], assignments: list[tuple[list[str], Any]]) -> bool:
    """Replace plain values of a config in place; False, with some of them replaced, where a key is not there yet."""
    for path, value in assignments:
        node: Any = config
        for part in path[:-1]:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or isinstance(node.get(path[-1], {}), dict | list):
            return False
        node[path[-1]] = value
    return True
