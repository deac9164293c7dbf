"""The result of one kind of inspection, and its numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from blockyard.inspect.panels import Page

JSON_SIDE = 128  # most rows and columns of a table in the JSON; neighbours are merged beyond
_DIGITS = 5


@dataclass
class InspectionResult:
    """The result of one kind of inspection.

    numbers: the content of the JSON file
    rows: the table for the terminal, by the names of the columns; a column of None alone is left out
    pages: the figures; each is drawn as the iteration reaches it
    summary: one line below the table
    """

    numbers: Mapping[str, object]
    rows: Sequence[Mapping[str, str | None]]
    pages: Iterable[Page]
    summary: str

    @property
    def columns(self) -> list[str]:
        """The names of the columns that have a cell in some row."""
        return [name for name in self.rows[0] if any(row[name] is not None for row in self.rows)]


def to_json(tensor: Tensor) -> Any:
    """Return a tensor as nested lists of numbers with five significant digits; None for NaN and infinity."""
    return _rounded(tensor.tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return None
