"""The rows of one or several tables as one, with columns of text, of numbers, or as they are stored.

Reference: pyarrow.compute.cast
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blockyard.data.files.class_names import plain_names
from blockyard.data.files.tables import FileRows, named, read_file
from blockyard.errors import UserError, quoted

if TYPE_CHECKING:
    import pyarrow

Kinds = Mapping[str, str]  # the name of a column -> "text", "number" or "stored"
NUMERIC = ("integer", "floating", "decimal", "boolean", "null")  # types that are read as numbers, and written as text


@dataclass(frozen=True)
class TableRows:
    """Rows of tables.

    table: the columns, of type string, double or as stored; files: where they come from; file: (n,) the file of each
    row; lines: (n,) its line there; units: what a line is called in each file, "line" or "row"
    """

    table: pyarrow.Table
    files: tuple[Path, ...]
    file: np.ndarray
    lines: np.ndarray
    units: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Return the file and line of a row."""
        file = int(self.file[row])
        return f"{self.files[file]}, {self.units[file]} {self.lines[row]}"

    def blank(self, column: str) -> np.ndarray:
        """Return which cells are missing or nothing but white space, (n,) bool."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = self.table[column]
        if pa.types.is_string(cells.type):
            cells = pc.if_else(pc.equal(pc.utf8_trim_whitespace(cells), ""), None, cells)
        return np.asarray(pc.is_null(cells, nan_is_null=pa.types.is_floating(cells.type)))

    def texts(self, column: str, rows: Sequence[int] | None = None) -> list[str]:
        """Return cells of text, of all rows or of some."""
        cells = self.table[column] if rows is None else self.table[column].take(list(rows))
        values: list[str] = cells.to_pylist()
        return values

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Return cells of numbers (n, columns) float64, NaN where one is missing."""
        return np.stack([self.table[name].to_numpy() for name in columns], 1).astype(np.float64)

    def select(self, mask: np.ndarray) -> TableRows:
        """Return the rows for which a mask (n,) holds."""
        import pyarrow as pa

        table = self.table.filter(pa.array(mask))
        return replace(self, table=table, file=self.file[mask], lines=self.lines[mask])

    def with_plain_names(self, columns: Sequence[str]) -> TableRows:
        """Return the rows with one spelling of each whole number in columns of text that have nothing else."""
        import pyarrow as pa

        table = self.table
        for column in columns:
            cells = table[column]
            if not pa.types.is_string(cells.type):
                continue  # a feature too, read as numbers
            plain = plain_names(cells.unique().to_pylist())
            if any(name != own for name, own in plain.items()):
                renamed = pa.array([plain[cell] for cell in cells.to_pylist()], pa.string())
                table = table.set_column(table.column_names.index(column), column, renamed)
        return replace(self, table=table)

    def refuse(self, problems: Mapping[str, np.ndarray]) -> None:
        """Raise UserError for the rows of every problem, a mask (n,): "FILE, lines 3, 7: no label"."""
        messages = []
        for problem, mask in problems.items():
            for number, path in enumerate(self.files):
                lines = self.lines[mask & (self.file == number)].tolist()
                if lines:
                    messages.append(f"{path}, {named(lines, self.units[number])}: {problem}")
        if messages:
            raise UserError("; ".join(messages))


def read_rows(files: Sequence[Path], columns: Mapping[str, str], kinds: Kinds) -> TableRows:
    """Read columns of all files. Raises UserError naming every cell that is not of its kind.

    columns: as in `read_file`; kinds: of each column; text where none is given
    """
    parts = [read_file(path, columns) for path in files]
    tables = [converted(path, part, columns, kinds) for path, part in zip(files, parts, strict=True)]
    return joined(files, parts, tables)


def joined(files: Sequence[Path], parts: Sequence[FileRows], tables: Sequence[pyarrow.Table]) -> TableRows:
    """Return the rows of converted tables, one after the other."""
    import pyarrow as pa

    return TableRows(
        pa.concat_tables(tables),
        tuple(files),
        np.repeat(np.arange(len(parts)), [len(part.lines) for part in parts]),
        np.concatenate([part.lines for part in parts]),
        tuple(part.unit for part in parts),
    )


def converted(path: Path, rows: FileRows, columns: Mapping[str, str], kinds: Kinds) -> pyarrow.Table:
    """Return the columns of one file, each of its kind. Raises UserError naming every cell that is not of it."""
    import pyarrow as pa

    typed = {}
    for key, name in columns.items():
        kind, cells = kinds.get(name, "text"), _decoded(rows.table[name])
        if kind == "text":
            typed[name] = as_text(f"{key}={name}: {path}", cells)
        else:
            typed[name] = as_numbers(path, rows, name, cells) if kind == "number" else cells
    return pa.table(typed)


def _decoded(cells: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Return cells without the encodings that few functions of pyarrow take: dictionaries and views."""
    import pyarrow as pa

    if pa.types.is_dictionary(cells.type):
        values = cells.type.value_type
        chunks = [chunk.dictionary.cast(_plain_type(values)).take(chunk.indices) for chunk in cells.chunks]
        return pa.chunked_array(chunks, _plain_type(values))
    plain = _plain_type(cells.type)
    return cells if plain == cells.type else cells.cast(plain)


def _plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    import pyarrow as pa

    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return kind


def as_text(what: str, cells: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Return cells as text: numbers and booleans as JSON writes them, NaN as missing. what: for the message.

    Raises UserError for cells of another type, and for bytes that are not UTF-8.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = cells.type
    if pa.types.is_floating(kind):
        cells = pc.if_else(pc.is_nan(cells), None, cells)
    elif not _is_any(kind, ("string", "binary", "large_binary", *NUMERIC)):
        raise UserError(f"{what} holds {kind} in this column, neither text nor numbers")
    try:
        return cells.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise UserError(f"{what} holds {kind} in this column that is not UTF-8 text") from error


def _is_any(kind: pyarrow.DataType, names: Sequence[str]) -> bool:
    """Return whether a type is one of pyarrow's, such as "decimal" or "integer" of any width."""
    import pyarrow as pa

    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def as_numbers(path: Path, rows: FileRows, name: str, cells: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Return a column as float64, null where a cell is empty. Raises UserError naming cells that are no numbers.

    rows: of the file, for messages; cells: of the column `name`
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = cells.type
    if pa.types.is_string(kind):
        cells = pc.utf8_trim_whitespace(cells)
        cells = pc.if_else(pc.equal(cells, ""), None, cells)
    elif not _is_any(kind, NUMERIC):
        raise UserError(f"{path} holds {kind} in the column {name!r}, not numbers")
    try:
        numbers = cells.cast(pa.int64() if pa.types.is_boolean(kind) else pa.float64()).cast(pa.float64())
    except pa.ArrowInvalid:
        wrong = [(line, cell) for line, cell in zip(rows.lines, cells.to_pylist(), strict=True) if not _is_number(cell)]
        raise UserError(
            f"{path}, {named([int(line) for line, _ in wrong], rows.unit)}: {name} is not a number, such as "
            f"{quoted(str(wrong[0][1]))}"
        ) from None
    infinite = np.asarray(pc.is_inf(numbers).fill_null(False))
    if infinite.any():
        raise UserError(f"{path}, {named(rows.lines[infinite].tolist(), rows.unit)}: {name} is infinite")
    return numbers


def _is_number(cell: str | None) -> bool:
    import pyarrow as pa

    try:
        pa.array([cell]).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
