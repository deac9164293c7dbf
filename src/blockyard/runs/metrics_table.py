"""The format of metrics.csv: read any file, damaged ones too, and write one row."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from blockyard.atomic_files import read_bytes

Row = dict[str, float]


def read_metrics(path: Path) -> list[Row]:
    """All complete rows in order of steps; empty cells are absent, `step` is an int.

    Torn or damaged lines are dropped. A missing file gives no rows. Raises OSError for what is not a regular file.
    """
    return parse(path)[1]


def parse(path: Path) -> tuple[list[str], list[Row], Literal["whole", "torn", "damaged"]]:
    """Columns, rows, and whether the file is whole, has a torn last line, or is damaged.

    Raises OSError for what is not a regular file.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return ["step"], [], "whole"
    whole, _, torn = data.rpartition(b"\n")
    try:
        table = list(csv.reader(io.StringIO(whole.decode(errors="replace"), newline="")))
    except csv.Error:  # a cell of more than 128 KiB
        table = []
    if not table or table[0][:1] != ["step"] or len(set(table[0])) != len(table[0]):
        return ["step"], [], "damaged" if data else "whole"
    columns, rows = table[0], []
    damaged = False
    for cells in table[1:]:
        row = _row(columns, cells)
        if row is None or (rows and row["step"] <= rows[-1]["step"]):
            damaged = True
        else:
            rows.append(row)
    if damaged:
        return columns, rows, "damaged"
    # A last row that was edited by hand would invalidate byte offsets, so it counts as torn and is rewritten.
    last = [text_of(rows[-1].get(name)) for name in columns] if rows else columns
    exact = not torn and data.endswith(line_of(last))
    return columns, rows, "whole" if exact else "torn"


def _row(columns: list[str], cells: list[str]) -> Row | None:
    if len(cells) != len(columns):
        return None
    try:
        row: Row = {name: float(cell) for name, cell in zip(columns, cells, strict=True) if cell != ""}
        row["step"] = int(cells[0])
    except ValueError:
        return None
    return row


def merge_steps(rows: Iterable[Row]) -> list[Row]:
    """One row per step, in order; later values win."""
    merged: list[Row] = []
    for row in rows:
        if merged and merged[-1]["step"] == row["step"]:
            merged[-1] = {**merged[-1], **row}
        else:
            merged.append(row)
    return merged


def text_of(value: float | None) -> str:
    """The text of a cell: empty for None, an integer without a point, else the shortest exact text."""
    if value is None:
        return ""
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and abs(value) < 2**53):
        return str(int(value))
    return repr(float(value))


def line_of(cells: list[str]) -> bytes:
    """The bytes of a row in the file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue().encode()
