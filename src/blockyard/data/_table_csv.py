"""Reading CSV and TSV, plain or gzipped, as cells of text.

Reference: pyarrow.csv.read_csv
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blockyard.data._table_rows import FileRows, check_columns, check_rows
from blockyard.data._unpacked import check_gzip
from blockyard.errors import UserError

if TYPE_CHECKING:
    import pyarrow

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_BLOCK = 2**27  # bytes that are parsed at a time; a row is at most as long


def read_separated(path: Path, separator: str, columns: Mapping[str, str]) -> FileRows:
    """The rows of a CSV or TSV file that have any text. Quotes are part of a cell in TSV."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    header = header_of(path, separator)
    check_columns(path, header, columns)
    names, short, long = [str(number) for number in range(len(header))], {}, []

    def ragged(row: Any) -> str:
        if row.actual_columns > row.expected_columns:
            long.append(int(row.number))
        else:
            short[int(row.number)] = row.text
        return "skip"

    try:
        with pa.input_stream(str(path)) as file:
            table = pyarrow.csv.read_csv(
                file,
                # With threads, rows would not know their number.
                pyarrow.csv.ReadOptions(use_threads=False, column_names=names, block_size=_BLOCK),
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
    lines = number + np.cumsum(breaks) - breaks  # line feeds inside quotes
    where = [int(at + np.sum(breaks[number < at])) for at in long]
    check_rows(path, {f"more cells than the {len(header)} of the header": where})
    sizes = [pc.binary_length(table[name]).fill_null(0).to_numpy() for name in names]
    filled = (np.max(sizes, axis=0) > 0) & (number > 1)  # the first row is the header
    wanted = dict.fromkeys(columns.values())
    table = pa.table({name: table[str(header.index(name))] for name in wanted}).filter(pa.array(filled))
    return FileRows(_decoded(path, table, lines[filled]), lines[filled], "line")


def _with_short_rows(
    table: pyarrow.Table, short: Mapping[int, str], long: Sequence[int], separator: str
) -> tuple[pyarrow.Table, np.ndarray]:
    """The rows of a table with those that have too few cells, null where one is missing; and the number of each."""
    import pyarrow as pa

    total = len(table) + len(short) + len(long)
    number = np.setdiff1d(np.arange(1, 1 + total), [*short, *long])
    if not short:
        return table, number
    cells = _split(short.values(), separator)
    padded = [[cell.encode() for cell in row] + [None] * (table.num_columns - len(row)) for row in cells]
    added = pa.table([pa.array(column, pa.binary()) for column in zip(*padded, strict=True)], names=table.column_names)
    number = np.concatenate([number, np.array(list(short), dtype=np.int64)])
    order = np.argsort(number)
    return pa.concat_tables([table, added]).take(order), number[order]


def _split(rows: Iterable[str], separator: str) -> list[list[str]]:
    """The cells of rows of text, of any length: the csv module refuses a cell above a limit of the process."""
    limit = csv.field_size_limit(_BLOCK)
    try:
        return [next(csv.reader([text], **_form(separator)), []) for text in rows]
    finally:
        csv.field_size_limit(limit)


def _decoded(path: Path, table: pyarrow.Table, lines: np.ndarray) -> pyarrow.Table:
    """Cells of bytes as text. Raises UserError naming every one that is not UTF-8."""
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
    """Returns the names in the first row. Raises UserError for an empty file."""
    form: dict[str, Any] = {"encoding": "utf-8-sig", "newline": "", "errors": "replace"}  # rows are checked one by one
    check_gzip(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", **form) as file:
        try:
            return next(csv.reader(file, **_form(separator)))
        except StopIteration:
            raise UserError(f"{path} is empty") from None
        except csv.Error as error:
            raise UserError(f"{path} cannot be read as a table: {error}") from error


def _form(separator: str) -> dict[str, Any]:
    return {"delimiter": separator, "quoting": csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE}
