"""Reading JSON Lines, plain or gzipped, as cells of text.

Reference: json.loads for each line
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.data._table_rows import FileRows, check_columns, check_rows
from blockyard.data._unpacked import check_gzip

LINES = (".jsonl", ".ndjson")


def read_lines(path: Path, columns: Mapping[str, str]) -> FileRows:
    """The objects of a JSON Lines file; numbers and booleans become the text that JSON writes for them.

    pyarrow's reader refuses a column with cells of two types without saying where.
    """
    import pyarrow as pa

    check_columns(path, keys_of(path), columns)
    names = list(dict.fromkeys(columns.values()))
    cells: list[list[str | None]] = []
    lines: list[int] = []
    problems: dict[str, list[int]] = {}
    for number, line in _numbered(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            problems.setdefault("not valid JSON", []).append(number)
            continue
        if not isinstance(record, dict):
            problems.setdefault("not a JSON object", []).append(number)
            continue
        for name in names:
            if isinstance(record.get(name), dict | list):
                problems.setdefault(f"{name} is neither text nor a number", []).append(number)
        cells.append([_text(record.get(name)) for name in names])
        lines.append(number)
    check_rows(path, problems)
    columns_of = list(zip(*cells, strict=True)) or [() for _ in names]
    table = pa.table([pa.array(column, pa.string()) for column in columns_of], names=names)
    return FileRows(table, np.array(lines, dtype=np.int64), "line")


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _numbered(path: Path) -> list[tuple[int, str]]:
    check_gzip(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        return [(number, line) for number, line in enumerate(file, start=1) if line.strip()]


def keys_of(path: Path) -> list[str]:
    """The keys of all lines, in the order of their first use."""
    keys: dict[str, None] = {}
    for _, line in _numbered(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        keys |= dict.fromkeys(record) if isinstance(record, dict) else {}
    return list(keys)
