"""CSV for spreadsheets. They compute any text that looks like a formula, and a text may come from a stranger.

Source: OWASP, CSV injection (https://owasp.org/www-community/attacks/CSV_Injection)
"""

from __future__ import annotations

import csv
import io
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

_COMPUTED = ("=", "+", "-", "@")


class Formatted(str):
    """The text of a number, written as it is."""

    __slots__ = ()


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV. None is an empty cell, and numbers are written in full."""
    text = io.StringIO()
    for cells in [header, *rows]:
        line = io.StringIO()
        csv.writer(line).writerow([cell(value) for value in cells])  # quotes what its own line ending consists of
        text.write(line.getvalue().removesuffix("\r\n") + "\n")
    return text.getvalue()


def cell(value: Any) -> Any:
    """Return a value as a cell: a text that a spreadsheet would compute gets an apostrophe in front."""
    if isinstance(value, str) and not isinstance(value, Formatted) and value.lstrip().startswith(_COMPUTED):
        return f"'{value}"
    return "" if value is None else shortest(value)


def shortest(value: Any) -> Any:
    """Return a fraction of single precision with the fewest digits that give it back: 0.1, not 0.10000000149.

    Other values, integers of any type among them, are returned as they are.
    """
    if not isinstance(value, float) or not math.isfinite(value) or value.is_integer() or abs(value) >= 2**23:
        return value
    if _single(value) != value:
        return value
    candidates = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((number for number in candidates if _single(number) == value), value)


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
