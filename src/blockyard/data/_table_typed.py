"""Reading Parquet and Arrow files, whose cells have types.

Reference: pyarrow.parquet.read_table, pyarrow.ipc.open_file
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from blockyard.data._native_check import ARROW, PARQUET, verify
from blockyard.data._table_rows import FileRows, check_columns
from blockyard.errors import UserError

TYPED = (".parquet", ".arrow", ".feather")


def names_of(path: Path, kind: str) -> list[str]:
    """Returns the names of the columns. Raises UserError for a file that cannot be read."""
    return verify(path, _format(kind))


def read_typed(path: Path, kind: str, columns: Mapping[str, str]) -> FileRows:
    """The columns of a Parquet or Arrow file, with their types; an uncompressed Arrow file is mapped into memory.

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


def _format(kind: str) -> str:
    return PARQUET if kind == ".parquet" else ARROW
