"""`all` for assertions."""

from __future__ import annotations

from collections.abc import Iterable


def every(values: Iterable[object]) -> bool:
    """Return whether all values are true and there is at least one: of nothing, `all` is true."""
    seen = [bool(value) for value in values]
    return bool(seen) and all(seen)
