"""A sample of a table that is too large to measure: rows drawn evenly over the whole file, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blockyard.data.files.tables import LINES, SEPARATORS, encoding_of, header_of, kind_of
from blockyard.data.files.unpacked import open_text
from blockyard.errors import UserError, first_line

if TYPE_CHECKING:
    import pyarrow

MOST_BYTES = 2**28  # of a table that is read as it is
SAMPLED_BYTES = 2**26
PACKED = 4  # bytes of text that a byte of a .gz file stands for, about
_SEED = 0


@dataclass(frozen=True)
class TableSample:
    """A sample of a table. path: of its file; num_rows: in it; of_rows: in the table"""

    path: Path
    num_rows: int
    of_rows: int


def is_large(path: Path) -> bool:
    """Return whether a table is sampled."""
    return _size(path) > MOST_BYTES


def sample_table(path: Path, folder: Path) -> TableSample:
    """Write about `SAMPLED_BYTES` of a table's rows into a folder. Raises UserError for a table that cannot be read."""
    kind = kind_of(path)
    share = SAMPLED_BYTES / _size(path)
    name = path.name.removesuffix(".gz").removesuffix(str(kind))
    sampled = folder / f"{name}-sample{kind}"
    generator = np.random.default_rng(_SEED)
    try:
        if kind == ".csv":
            counts = _sample_csv(path, sampled, share, generator)
        elif kind == ".parquet":
            counts = _sample_parquet(path, sampled, share, generator)
        elif kind in (".tsv", *LINES):
            counts = _sample_lines(path, sampled, share, generator, has_header=kind == ".tsv")
        else:
            raise UserError(f"{path} is too large to be read whole, and {kind} is not sampled; write it as .parquet")
    except (OSError, EOFError, ValueError) as error:  # pyarrow's errors are ValueErrors
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    return TableSample(sampled, *counts)


def _size(path: Path) -> int:
    """Return the bytes of a table, about those without compression for a .gz file."""
    size = path.stat().st_size
    if path.suffix == ".gz":
        size *= PACKED
    return size


def _sample_lines(
    path: Path, sampled: Path, share: float, generator: np.random.Generator, *, has_header: bool
) -> tuple[int, int]:
    """Sample a file with a row in each line."""
    num_kept = 0
    num_rows = 0
    with open_text(path, encoding_of(path)) as lines, open(sampled, "w", encoding="utf-8") as file:
        if has_header:
            file.write(next(lines))
        for line in lines:
            if not line.strip():
                continue
            num_rows += 1
            if generator.random() < share:
                num_kept += 1
                file.write(line)
    return num_kept, num_rows


def _sample_csv(path: Path, sampled: Path, share: float, generator: np.random.Generator) -> tuple[int, int]:
    """Sample a CSV file, whose cells stay as they are written. A row with too few or too many cells is left out."""
    import pyarrow as pa
    import pyarrow.csv

    types = dict.fromkeys(header_of(path, SEPARATORS[".csv"]), pa.string())
    reading = pyarrow.csv.ReadOptions(encoding=encoding_of(path).removesuffix("-sig"))
    parsing = pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda _row: "skip")
    as_written = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False, null_values=[])
    with (
        pa.input_stream(str(path)) as file,
        pyarrow.csv.open_csv(file, reading, parsing, as_written) as reader,
        pyarrow.csv.CSVWriter(str(sampled), reader.schema) as writer,
    ):
        return _copied(reader, writer.write_batch, share, generator)


def _sample_parquet(path: Path, sampled: Path, share: float, generator: np.random.Generator) -> tuple[int, int]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    with pyarrow.parquet.ParquetWriter(sampled, file.schema_arrow) as writer:
        return _copied(file.iter_batches(), writer.write_batch, share, generator)


def _copied(
    batches: Iterable[pyarrow.RecordBatch],
    write: Callable[[pyarrow.RecordBatch], object],
    share: float,
    generator: np.random.Generator,
) -> tuple[int, int]:
    """Write a share of the rows of all batches. Return how many rows were written, and how many there are."""
    import pyarrow as pa

    num_kept = 0
    num_rows = 0
    for batch in batches:
        kept = generator.random(len(batch)) < share
        num_kept += int(kept.sum())
        num_rows += len(batch)
        write(batch.filter(pa.array(kept)))
    return num_kept, num_rows
