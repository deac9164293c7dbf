"""The named intermediates of a forward pass, so that a probe needs no hooks.

A model's `forward` takes `record`: None, or a dict that it fills. `steps` gives it an empty one and returns it.
"""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def note(record: Record | None, name: str, value: Any) -> None:
    """Keep an intermediate under its name if anybody records."""
    if record is not None:
        record[name] = value
