"""Prints the selected runs as a table or as CSV."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from blockyard.atomic_files import csv_text
from blockyard.errors import printable
from blockyard.runs.record import RunRecord
from blockyard.terminal import console, table


def print_table(selected: Sequence[RunRecord], columns: Sequence[str], limit: int, total: int, outputs: str) -> None:
    shown = selected[: limit or None]
    rows = table(None, "run", *columns)
    for record in shown:
        rows.add_row(record.run, *(_text(record.value(key)) for key in columns))
    if shown:
        console().print(rows)
    more = "; --limit 0 shows all" if len(shown) < len(selected) else ""
    which = f"{len(shown)} of {len(selected)}" if more else str(len(selected))
    sys.stdout.write(f"{which} run{'s'[: len(selected) != 1]} of {total} in {outputs}{more}\n")
    for record in shown:
        if record.damage:
            sys.stderr.write(f"blockyard: {record.run}: {printable(record.damage)}\n")


def write_csv(selected: Sequence[RunRecord], columns: Sequence[str]) -> None:
    rows = ([record.run, *(_cell(record.value(key)) for key in columns)] for record in selected)
    sys.stdout.write(csv_text(["run", *columns], rows))


def _cell(value: Any) -> Any:
    """A value as CSV holds it: numbers in full, lists as words."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else value


def _text(value: Any) -> str:
    """A value as the table shows it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(_cell(value))
    return text[:16].replace("T", " ") if text[10:11] == "T" and text[:4].isdigit() else text
