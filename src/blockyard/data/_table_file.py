"""Reading tables from disk: CSV, TSV, JSON Lines, Parquet and Arrow, the first three also gzipped.

Cells of CSV, TSV and JSON Lines are text; those of Parquet and Arrow keep their types. Every row knows the line of the
file on which it begins, or its number from 1 where a file has no lines, so that messages can name it. Nothing here
knows what the columns mean.
"""

from __future__ import annotations

import glob
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.data._table_csv import SEPARATORS, header_of, read_separated
from blockyard.data._table_json import LINES, keys_of, read_lines
from blockyard.data._table_rows import FileRows
from blockyard.data._table_typed import TYPED, names_of, read_typed
from blockyard.errors import UserError

if TYPE_CHECKING:
    import pandas

KINDS = (*SEPARATORS, *LINES, *TYPED)


def kind_of(path: Path) -> str | None:
    """Returns the suffix that says how a table is written, without .gz: .csv, .jsonl, .parquet; None for another."""
    if path.suffix == ".gz":
        inner = path.with_suffix("").suffix
        return inner if inner in (*SEPARATORS, *LINES) else None
    return path.suffix if path.suffix in KINDS else None


def files_of(path: str) -> list[Path]:
    """Returns the files that a path names: itself, those of a folder, or those that a glob matches; sorted."""
    own = Path(path).expanduser()
    if own.is_file():
        return [own]
    if own.is_dir():
        return sorted(file for file in own.iterdir() if kind_of(file) and file.is_file())
    return sorted(Path(name) for name in glob.glob(str(own), recursive=True) if Path(name).is_file())


def read_file(path: Path, columns: Mapping[str, str]) -> FileRows:
    """Reads columns of a table. Raises UserError naming every line that is not a row of it.

    columns: what asks for a column -> its name, such as {"data.text": "text"}
    """
    kind = kind_of(path)
    if kind is None:
        raise UserError(
            f"{path}: a table is one of {', '.join(KINDS)}; the first four may be gzipped; convert the file"
        )
    try:
        if kind in TYPED:
            rows = read_typed(path, kind, columns)
        else:
            rows = read_lines(path, columns) if kind in LINES else read_separated(path, SEPARATORS[kind], columns)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}); convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not len(rows.table):
        raise UserError(f"{path} has no rows")
    return rows


def read_table(path: Path, columns: Mapping[str, str]) -> pandas.DataFrame:
    """As `read_file`, with cells of text, or None where one is missing, and the line of each row as the index."""
    import pandas

    rows = read_file(path, columns)
    cells = {name: rows.table[name].cast("string").to_pylist() for name in dict.fromkeys(columns.values())}
    return pandas.DataFrame(cells, index=rows.lines, dtype=object)


def column_names(path: Path) -> list[str]:
    """Returns the columns of a table: those of its header or schema, or the keys of its lines."""
    kind = kind_of(path)
    try:
        if kind is None:
            return []
        if kind in TYPED:
            return names_of(path, kind)
        return keys_of(path) if kind in LINES else header_of(path, SEPARATORS[kind])
    except (OSError, EOFError, ValueError, zlib.error):  # `read_file` says what is wrong
        return []
