"""Reading tables from disk: CSV, TSV and JSON Lines, plain or gzipped, as cells of text with their line numbers.

Reference: pandas.read_csv; json.loads for each line of JSON Lines

A table is a pandas DataFrame whose cells are text, or None where a cell is missing; its index holds the line of the
file on which each row begins, so that messages can name it. Nothing here knows what the columns mean.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError, near

if TYPE_CHECKING:
    import pandas

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")
SHOWN = 50  # lines that one message lists


def kind_of(path: Path) -> str | None:
    """Returns the suffix that says how a table is written, without .gz: .csv, .tsv, .jsonl; None for another."""
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    return suffix if suffix in SEPARATORS or suffix in LINES else None


def read_table(path: Path, columns: Mapping[str, str]) -> pandas.DataFrame:
    """Reads the columns of a table. Raises UserError naming every line that is not a row of it.

    columns: what asks for a column -> its name, such as {"data.text": "text"}
    """
    kind = kind_of(path)
    if kind is None:
        kinds = ", ".join((*SEPARATORS, *LINES))
        raise UserError(f"{path}: a table is one of {kinds}, plain or with .gz; rename or convert the file")
    try:
        table = _lines(path, columns) if kind in LINES else _separated(path, SEPARATORS[kind], columns)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); convert it") from error
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if table.empty:
        raise UserError(f"{path} has no rows")
    return table


def check_rows(path: Path, problems: Mapping[str, Sequence[int]]) -> None:
    """Raises UserError if any problem has a line: "FILE: label missing in lines 3, 7"."""
    remaining = {problem: sorted(lines) for problem, lines in problems.items() if len(lines)}
    if remaining:
        raise UserError("; ".join(f"{path}, {_named(lines)}: {problem}" for problem, lines in remaining.items()))


def column_names(path: Path) -> list[str]:
    """Returns the columns of a table: those of its header, or the keys of its first line."""
    kind = kind_of(path)
    try:
        return [] if kind is None else _keys(path) if kind in LINES else _header(path, SEPARATORS[kind])
    except (OSError, EOFError, ValueError):  # `read_table` says what is wrong
        return []


def _separated(path: Path, separator: str, columns: Mapping[str, str]) -> pandas.DataFrame:
    """The rows of a CSV or TSV file that have any text. Quotes are part of a cell in TSV."""
    import pandas

    header = _header(path, separator)
    _check_columns(path, header, columns)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", pandas.errors.ParserWarning)
        try:
            table = pandas.read_csv(path, on_bad_lines="warn", **_form(separator))
        except UnicodeDecodeError:
            raise
        except ValueError as error:  # pandas' parser errors: an open quote, a byte of zero
            raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from error
    long = [int(line) for warning in caught for line in re.findall(r"line (\d+):", str(warning.message))]
    check_rows(path, {f"more cells than the {len(header)} of the header": long})
    breaks = table.apply(lambda cells: cells.str.count("\n")).sum(axis=1).astype(int)  # line feeds inside quotes
    table.index = 1 + pandas.RangeIndex(len(table)) + (breaks.cumsum() - breaks)
    table = table.iloc[1:].set_axis(header, axis=1)
    table = table[(table.fillna("") != "").any(axis=1)]
    return table[list(dict.fromkeys(columns.values()))]


def _form(separator: str) -> dict[str, Any]:
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    # The header is read as a row: the first row tells pandas how many cells the others may have.
    return {
        "sep": separator,
        "header": None,
        "quoting": quoting,
        "dtype": str,
        "keep_default_na": False,
        "skip_blank_lines": False,
        "encoding": "utf-8-sig",
    }


def _header(path: Path, separator: str) -> list[str]:
    import pandas

    try:
        first = pandas.read_csv(path, nrows=1, **_form(separator))
    except pandas.errors.EmptyDataError:
        raise UserError(f"{path} is empty") from None
    return [str(name) for name in first.iloc[0]]


def _lines(path: Path, columns: Mapping[str, str]) -> pandas.DataFrame:
    """The objects of a JSON Lines file; numbers and booleans become the text that JSON writes for them."""
    import pandas

    keys = _keys(path)
    _check_columns(path, keys, columns)
    rows: dict[int, list[str | None]] = {}
    problems: dict[str, list[int]] = {}
    for number, line in _numbered(path):
        try:
            record = json.loads(line)
        except ValueError:
            problems.setdefault("not valid JSON", []).append(number)
            continue
        if not isinstance(record, dict):
            problems.setdefault("not a JSON object", []).append(number)
            continue
        for name in columns.values():
            if isinstance(record.get(name), dict | list):
                problems.setdefault(f"{name} is neither text nor a number", []).append(number)
        rows[number] = [_text(record.get(name)) for name in columns.values()]
    check_rows(path, problems)
    return pandas.DataFrame.from_dict(rows, orient="index", columns=list(columns.values()), dtype=object)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _numbered(path: Path) -> list[tuple[int, str]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        return [(number, line) for number, line in enumerate(file, start=1) if line.strip()]


def _keys(path: Path) -> list[str]:
    """The keys of all lines, in the order of their first use."""
    keys: dict[str, None] = {}
    for _, line in _numbered(path):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        keys |= dict.fromkeys(record) if isinstance(record, dict) else {}
    return list(keys)


def _check_columns(path: Path, header: Sequence[str], columns: Mapping[str, str]) -> None:
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


def _named(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:SHOWN]))
    more = f" and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return f"line{'s' * (len(lines) > 1)} {shown}{more}"
