"""Line numbers of the rows of a CSV, for messages: pandas skips blank lines and does not keep the numbers."""

from __future__ import annotations

import csv
from pathlib import Path

from blockyard.data.files.tables import encoding_of
from blockyard.data.files.unpacked import open_text


def row_lines(path: Path) -> list[int]:
    """Return the line, from 1, at which each row after the header of a CSV begins; empty for other files.

    Blank lines are skipped, as pandas does, and quoted text may span several lines. Empty also where the csv module
    cannot read what pandas can, such as a cell of more than 131,072 characters.
    """
    if not path.name.removesuffix(".gz").endswith(".csv"):
        return []
    lines: list[int] = []
    last = 0
    try:
        with open_text(path, encoding_of(path), newline="") as file:
            reader = csv.reader(file)
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    lines.append(last + 1)
                last = reader.line_num
    except csv.Error:
        return []
    return lines[1:]


def location(path: Path, row: int) -> str:
    """Return the location of row `row`, from 0, in a file: "line 5" in a CSV, "row 4" in other files."""
    lines = row_lines(path)
    if row < len(lines):
        return f"line {lines[row]}"
    return f"row {row + 1}"
