"""What is read of one table: its columns, and for each row the line that messages name it by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blockyard.errors import UserError, near

if TYPE_CHECKING:
    import pandas
    import pyarrow

SHOWN = 50  # lines that one message lists


class FileRows(NamedTuple):
    """The columns of one file that were asked for, and for each row its line, or its number from 1 (n,)."""

    table: pyarrow.Table
    lines: np.ndarray
    unit: str  # "line" or "row"


def check_rows(path: Path, problems: Mapping[str, Sequence[int]], unit: str = "line") -> None:
    """Raises UserError if any problem has a line: "FILE, lines 3, 7: no label"."""
    remaining = {problem: sorted(lines) for problem, lines in problems.items() if len(lines)}
    if remaining:
        raise UserError("; ".join(f"{path}, {named(lines, unit)}: {what}" for what, lines in remaining.items()))


def check_columns(path: Path, header: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raises UserError for a column that a file lacks, or has twice. columns: as in `read_file`."""
    for key, name in columns.items():
        if header.count(name) > 1:
            raise UserError(f"{key}={name}: {path} has {header.count(name)} columns of this name; rename all but one")
        if name not in header:
            close = near(name, header)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UserError(f"{key}={name}: {path} has no such column; it has {', '.join(header)[:400]}{hint}")


def lines_where(mask: pandas.Series[bool]) -> list[int]:
    """Returns the lines of the rows for which `mask` holds."""
    return [int(line) for line in mask.index[mask]]


def named(lines: Sequence[int], unit: str = "line") -> str:
    """Returns "line 3", or "lines 3, 7 and 12 more"."""
    shown = ", ".join(map(str, lines[:SHOWN]))
    more = f" and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return f"{unit}{'s' * (len(lines) > 1)} {shown}{more}"
