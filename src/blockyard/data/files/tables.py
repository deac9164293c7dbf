"""Reading tables from disk: CSV, TSV, JSON Lines, Parquet and Arrow, the first three also gzipped.

Cells of CSV, TSV and JSON Lines are text; cells of Parquet and Arrow keep their types. Every row knows the line of the
file on which it begins, or its number from 1 where a file has no lines, so that messages can name it. Nothing here
knows the meaning of a column.

Reference: pyarrow.csv.read_csv, pyarrow.parquet.read_table, pyarrow.ipc.open_file; json.loads for each line
"""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blockyard.data.files.file_names import data_files
from blockyard.data.files.native_check import ARROW, PARQUET, verify
from blockyard.data.files.unpacked import check_gzip, open_text
from blockyard.errors import UserError, near, quoted

if TYPE_CHECKING:
    import pandas
    import pyarrow

_SURROGATE = re.compile("[\ud800-\udfff]")
SHOWN = 50  # lines that one message lists
TYPED = (".parquet", ".arrow", ".feather")
LINES = (".jsonl", ".ndjson")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
NAMES = {",": "commas", "\t": "tabs"}
_BLOCK = 2**27  # bytes that are parsed at a time; a row is at most as long
KINDS = (*SEPARATORS, *LINES, *TYPED)


class FileRows(NamedTuple):
    """Columns of one file, and for each row its line, or its number from 1, (n,)."""

    table: pyarrow.Table
    lines: np.ndarray
    unit: str  # "line" or "row"


def read_file(path: Path, columns: Mapping[str, str]) -> FileRows:
    """Read columns of a table. Raises UserError naming every line that is not a row of it.

    columns: the option that names a column -> the column, such as {"data.text": "text"}
    """
    kind = kind_of(path)
    if kind is None:
        raise UserError(
            f"{path}: a table is one of {', '.join(KINDS)}; the first four may be gzipped; convert the file"
        )
    try:
        if kind in TYPED:
            rows = read_typed(path, kind, columns)
        elif kind in LINES:
            rows = read_lines(path, columns)
        else:
            rows = read_separated(path, SEPARATORS[kind], columns)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {error.encoding.upper()} text ({error.reason}); convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not len(rows.table):
        raise UserError(f"{path} has no rows")
    return rows


def read_table(path: Path, columns: Mapping[str, str]) -> pandas.DataFrame:
    """Read columns as `read_file` does, as text, None where a cell is missing; the index is the line of each row."""
    import pandas

    rows = read_file(path, columns)
    cells = {name: rows.table[name].cast("string").to_pylist() for name in dict.fromkeys(columns.values())}
    return pandas.DataFrame(cells, index=rows.lines, dtype=object)


def column_names(path: Path) -> list[str]:
    """Return the columns of a table, from its header or schema, or the keys of its lines."""
    kind = kind_of(path)
    try:
        if kind is None:
            return []
        if kind in TYPED:
            return names_of(path, kind)
        if kind in LINES:
            return keys_of(path)
        return header_of(path, SEPARATORS[kind])
    except (OSError, EOFError, ValueError, zlib.error):  # `read_file` says what is wrong
        return []


def kind_of(path: Path) -> str | None:
    """Return the suffix of a table's format without .gz: .csv, .jsonl, .parquet; None for another file."""
    if path.suffix == ".gz":
        suffix = path.with_suffix("").suffix
        return suffix if suffix in (*SEPARATORS, *LINES) else None
    return path.suffix if path.suffix in KINDS else None


def files_of(path: str) -> list[Path]:
    """Return the files that a path names, sorted: a file, the tables of a folder, or the matches of a glob."""
    root = Path(path).expanduser()
    if root.is_file():
        return [root]
    if root.is_dir():
        return data_files(root, (file for file in root.iterdir() if kind_of(file) and file.is_file()))
    return sorted(Path(name) for name in glob.glob(str(root), recursive=True) if Path(name).is_file())


def read_separated(path: Path, separator: str, columns: Mapping[str, str]) -> FileRows:
    """Return the rows of a CSV or TSV file that have any text. Quotes are part of a cell in TSV."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    header = header_of(path, separator)
    check_columns(path, header, columns)
    names = [str(number) for number in range(len(header))]
    short: dict[int, str] = {}
    long: list[int] = []
    escaped = False

    def ragged(row: Any) -> str:
        nonlocal escaped
        if row.actual_columns > row.expected_columns:
            long.append(int(row.number))
            escaped = escaped or '\\"' in row.text
        else:
            short[int(row.number)] = row.text
        return "skip"

    try:
        with pa.input_stream(str(path)) as file:
            table = pyarrow.csv.read_csv(
                file,
                # With threads, rows would not know their number.
                pyarrow.csv.ReadOptions(
                    use_threads=False,
                    column_names=names,
                    block_size=_BLOCK,
                    encoding=encoding_of(path).removesuffix("-sig"),
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=separator,
                    quote_char='"' if separator == "," else False,
                    newlines_in_values=separator == ",",
                    ignore_empty_lines=False,
                    invalid_row_handler=ragged,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False, null_values=[]
                ),
            )
    except pa.ArrowInvalid as error:
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())}") from error
    table, number = _with_short_rows(table, short, long, separator)
    breaks = np.zeros(len(table), dtype=np.int64)
    for name in names:
        breaks += pc.count_substring(table[name], "\n").fill_null(0).to_numpy()
    # Rows are numbered, and messages name lines: a line feed inside quotes moves all rows behind it by one line.
    lines = number + np.cumsum(breaks) - breaks
    long_lines = [int(row + np.sum(breaks[number < row])) for row in long]
    hint = '; a quote inside quotes is written twice (""), not with a backslash (\\")' if escaped else ""
    check_rows(path, {f"more cells than the {len(header)} of the header{hint}": long_lines})
    sizes = [pc.binary_length(table[name]).fill_null(0).to_numpy() for name in names]
    filled = (np.max(sizes, axis=0) > 0) & (number > 1)  # the first row is the header
    wanted = dict.fromkeys(columns.values())
    table = pa.table({name: table[str(header.index(name))] for name in wanted}).filter(pa.array(filled))
    return FileRows(_decoded(path, table, lines[filled]), lines[filled], "line")


def _with_short_rows(
    table: pyarrow.Table, short: Mapping[int, str], long: Sequence[int], separator: str
) -> tuple[pyarrow.Table, np.ndarray]:
    """Return the rows of a table with the short ones among them, null where a cell is missing, and their numbers."""
    import pyarrow as pa

    total = len(table) + len(short) + len(long)
    number = np.setdiff1d(np.arange(1, 1 + total), [*short, *long])
    if not short:
        return table, number
    padded = []
    for row in _split(short.values(), separator):
        missing = table.num_columns - len(row)
        padded.append([*(cell.encode() for cell in row), *[None] * missing])
    columns = [pa.array(column, pa.binary()) for column in zip(*padded, strict=True)]
    added = pa.table(columns, names=table.column_names)
    number = np.concatenate([number, np.array(list(short), dtype=np.int64)])
    order = np.argsort(number)
    return pa.concat_tables([table, added]).take(order), number[order]


def _split(rows: Iterable[str], separator: str) -> list[list[str]]:
    """Return the cells of rows of text, of any length: the csv module refuses a cell above a limit of the process."""
    limit = csv.field_size_limit(_BLOCK)
    try:
        return [next(csv.reader([text], **_form(separator)), []) for text in rows]
    finally:
        csv.field_size_limit(limit)


def _decoded(path: Path, table: pyarrow.Table, lines: np.ndarray) -> pyarrow.Table:
    """Return cells of bytes as text. Raises UserError naming every cell that is not UTF-8."""
    import pyarrow as pa

    try:
        return table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
    except pa.ArrowInvalid:
        problems: dict[str, list[int]] = {}
        for name in table.column_names:
            for line, cell in zip(lines.tolist(), table[name].to_pylist(), strict=True):
                try:
                    (cell or b"").decode()
                except UnicodeDecodeError:
                    problems.setdefault(f"{name} is not UTF-8 text; convert the file", []).append(line)
        check_rows(path, problems)
        raise


def header_of(path: Path, separator: str) -> list[str]:
    """Return the names in the first row. Raises UserError for an empty file, or one with other separators."""
    check_gzip(path)
    # Broken bytes are replaced here: `_decoded` names them with their lines.
    with open_text(path, encoding_of(path), newline="", errors="replace") as file:
        try:
            header = next(csv.reader(file, **_form(separator)))
        except StopIteration:
            raise UserError(f"{path} is empty") from None
        except csv.Error as error:
            raise UserError(f"{path} cannot be read as a table: {error}") from error
    # A spreadsheet writes them where decimals have commas.
    if len(header) == 1 and ";" in header[0]:
        raise UserError(
            f"{path}: its cells are separated by semicolons, as in {quoted(header[0])}; a {path.suffix} file has "
            f"{NAMES[separator]} between cells, and points in numbers, as in "
            "pandas.read_csv(FILE, sep=';', decimal=',').to_csv(OTHER, index=False)"
        )
    return header


def _form(separator: str) -> dict[str, Any]:
    return {"delimiter": separator, "quoting": csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE}


def encoding_of(path: Path) -> str:
    """Return the encoding of a file by its first bytes: UTF-16 by its byte order mark, else UTF-8."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        start = file.read(2)
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    return "utf-8-sig"


def read_lines(path: Path, columns: Mapping[str, str]) -> FileRows:
    """Return the objects of a JSON Lines file; numbers and booleans become the text that JSON writes for them.

    pyarrow's reader refuses a column with cells of two types without naming a line, so lines are parsed here.
    """
    import pyarrow as pa

    keys = keys_of(path)
    if keys:  # without keys no line can be read: the lines are reported first, the missing columns below
        check_columns(path, keys, columns)
    names = list(dict.fromkeys(columns.values()))
    cells: list[list[str | None]] = []
    lines: list[int] = []
    problems: dict[str, list[int]] = {}
    for number, line in _numbered(path):
        try:
            record = json.loads(line, object_pairs_hook=unique_keys)
        except RepeatedKeyError as error:
            problems.setdefault(str(error), []).append(number)
            continue
        except (ValueError, RecursionError):
            problems.setdefault("not valid JSON", []).append(number)
            continue
        if not isinstance(record, dict):
            problems.setdefault("not a JSON object", []).append(number)
            continue
        row: list[str | None] = []
        for name in names:
            value = record.get(name)
            if isinstance(value, dict | list):
                problems.setdefault(f"{name} is neither text nor a number", []).append(number)
            elif isinstance(value, str) and _SURROGATE.search(value):
                problems.setdefault(f"{name} has half of a surrogate pair instead of a character", []).append(number)
            row.append(value if value is None or isinstance(value, str) else json.dumps(value))
        cells.append(row)
        lines.append(number)
    check_rows(path, problems)
    if not keys:
        check_columns(path, keys, columns)
    cells_of_columns = list(zip(*cells, strict=True)) or [() for _ in names]
    table = pa.table([pa.array(column, pa.string()) for column in cells_of_columns], names=names)
    return FileRows(table, np.array(lines, dtype=np.int64), "line")


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of keys and values, for `object_pairs_hook`. Raises RepeatedKeyError."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RepeatedKeyError(f"the key {quoted(twice)} is there twice")
    return record


class RepeatedKeyError(ValueError):
    """A key that a JSON object has twice."""


def _numbered(path: Path) -> list[tuple[int, str]]:
    check_gzip(path)
    with open_text(path, encoding_of(path)) as file:
        return [(number, line) for number, line in enumerate(file, start=1) if line.strip()]


def keys_of(path: Path) -> list[str]:
    """Return the keys of all lines, in the order of their first use."""
    keys: dict[str, None] = {}
    for _, line in _numbered(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            keys |= dict.fromkeys(record)
    return list(keys)


def read_typed(path: Path, kind: str, columns: Mapping[str, str]) -> FileRows:
    """Return the columns of a Parquet or Arrow file, with their types; an uncompressed Arrow file is mapped.

    The file has been read in a process of its own before, because a damaged one can end the process that reads it.
    """
    import pyarrow as pa

    check_columns(path, verify(path, _format(kind), list(columns.values())), columns)
    names = list(dict.fromkeys(columns.values()))
    try:
        if _format(kind) == PARQUET:
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path, columns=names)
        else:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().select(names)
    except pa.ArrowException as error:
        raise UserError(f"{path} cannot be read as {kind[1:]}: {' '.join(str(error).split())}") from error
    return FileRows(table, np.arange(1, 1 + len(table)), "row")


def names_of(path: Path, kind: str) -> list[str]:
    """Return the names of the columns. Raises UserError for a file that cannot be read."""
    return verify(path, _format(kind))


def _format(kind: str) -> str:
    return PARQUET if kind == ".parquet" else ARROW


def check_rows(path: Path, problems: Mapping[str, Sequence[int]], unit: str = "line") -> None:
    """Raise UserError if any problem has a line: "FILE, lines 3, 7: no label"."""
    remaining = {problem: sorted(lines) for problem, lines in problems.items() if len(lines)}
    if remaining:
        raise UserError("; ".join(f"{path}, {named(lines, unit)}: {what}" for what, lines in remaining.items()))


def check_columns(path: Path, header: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raise UserError for a column that a file lacks, or has twice. columns: as in `read_file`."""
    for key, name in columns.items():
        if header.count(name) > 1:
            raise UserError(f"{key}={name}: {path} has {header.count(name)} columns of this name; rename all but one")
        if name not in header:
            close = near(name, header)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            names = ", ".join(map(repr, header))[:400]
            raise UserError(f"{key}={name}: {path} has no such column; it has {names}{hint}")


def check_unique(path: Path, header: Sequence[str], names: Iterable[str]) -> None:
    """Raise UserError for a name of several columns. header: of all columns; names: of the columns that are read"""
    twice = [name for name in dict.fromkeys(names) if header.count(name) > 1]
    if twice:
        raise UserError(f"{path} has several columns of the name {', '.join(map(repr, twice))}; rename all but one")


def lines_where(mask: pandas.Series[bool]) -> list[int]:
    """Return the lines of the rows for which `mask` holds."""
    return [int(line) for line in mask.index[mask]]


def named(lines: Sequence[int], unit: str = "line") -> str:
    """Return "line 3", or "lines 3, 7 and 12 more"."""
    shown = ", ".join(map(str, lines[:SHOWN]))
    more = f" and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return f"{unit}{'s' * (len(lines) > 1)} {shown}{more}"
