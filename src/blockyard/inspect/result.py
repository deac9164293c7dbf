"""What one kind of inspection returns, and its numbers as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

_DIGITS = 5


@dataclass
class InspectionResult:
    """The result of one kind of inspection.

    numbers: the content of the JSON file
    columns, rows: the table for the terminal
    figures: paths of the PNG files; each is drawn as the iterable reaches it
    summary: one line below the table
    """

    numbers: Mapping[str, object]
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    figures: Iterable[Path]
    summary: str


def to_json(tensor: Tensor) -> Any:
    """Return a tensor as nested lists of numbers with five significant digits; None for NaN and infinity."""
    return _rounded(tensor.tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
