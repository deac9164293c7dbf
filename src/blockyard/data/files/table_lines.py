"""Where the rows of a table stand in its file, for messages: pandas leaves blank lines out and keeps no numbers."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path


def row_lines(path: Path) -> list[int]:
    """Return the line, from 1, in which each row of a CSV behind its header begins; none of another kind of file.

    A line without text is no row, as pandas reads it, and quoted text may go over several lines.
    """
    if not path.name.removesuffix(".gz").endswith(".csv"):
        return []
    lines, last = list[int](), 0
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        for cells in reader:
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                lines.append(last + 1)
            last = reader.line_num
    return lines[1:]


def place_of(path: Path, row: int) -> str:
    """Return where row `row`, from 0, is: "line 5" of a CSV, "row 4" of another file."""
    lines = row_lines(path)
    return f"line {lines[row]}" if row < len(lines) else f"row {row + 1}"
