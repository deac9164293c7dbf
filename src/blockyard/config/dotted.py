"""Dotted keys of a nested config: `optimizer.lr`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ABSENT = object()


def get(config: Mapping[str, Any], key: str, absent: Any = ABSENT) -> Any:
    """What stands at a dotted key, or `absent` where there is no such place."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return absent
        node = node[part]
    return node
