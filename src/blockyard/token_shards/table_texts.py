"""The texts of a table's column as plain text files, which `blockyard tokenize` then reads as any others.

A text follows the other, each ended by a line break. The files lie in FOLDER.texts while shards are written, are the
same at every start, and are removed at the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from blockyard.atomic_files import TEMPORARY, replacing
from blockyard.data.files.table_rows import read_rows
from blockyard.data.files.tables import kind_of
from blockyard.errors import UserError, fold

_ROWS = 10_000  # texts that are written at a time
_OWN = re.compile(rf"[0-9]{{5,}}-.*\.txt|{re.escape(TEMPORARY)}.*", re.S)  # names of the files


def texts_folder(folder: Path) -> Path:
    """Returns where the texts of tables lie while the shards of `folder` are written."""
    return folder.with_name(f"{folder.name}.texts")


def without_tables(files: Sequence[Path], folder: Path, column: str | None) -> list[Path]:
    """Returns the files with a text file in place of each table, in the same order.

    column: of the texts. Raises UserError for tables without it, a column without tables, and rows without text.
    """
    tables = [file for file in files if kind_of(file)]
    if column is None:
        if tables:
            raise UserError(f"{tables[0]} is a table; name the column of its texts: column=text")
        return list(files)
    if not tables:
        raise UserError(f"column={column} has no effect: no table is among the files")
    target = texts_folder(folder)
    if others := [file.name for file in _listed(target) if not _OWN.fullmatch(file.name)]:
        raise UserError(f"{target} is needed for the texts of tables and holds {fold(others)}; move it, or choose out=")
    target.mkdir(parents=True, exist_ok=True)
    return [
        _extracted(file, target / f"{number:05}-{file.name}.txt", column) if kind_of(file) else file
        for number, file in enumerate(files)
    ]


def remove_texts(folder: Path) -> None:
    """Remove the texts of tables, once the shards of `folder` are written, and nothing else."""
    target = texts_folder(folder)
    for file in _listed(target):
        if _OWN.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or somebody put something into it meanwhile
        target.rmdir()


def _listed(target: Path) -> list[Path]:
    return sorted(target.iterdir()) if target.is_dir() else []


def _extracted(table: Path, path: Path, column: str) -> Path:
    rows = read_rows([table], {"column": column}, {column: "text"})
    rows.refuse({f"no {column}": rows.blank(column)})
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        for start in range(0, len(rows), _ROWS):
            texts = rows.texts(column, range(start, min(start + _ROWS, len(rows))))
            file.writelines(f"{text}\n" for text in texts)
    return path
