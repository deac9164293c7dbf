"""metrics.csv: the metrics of a run as a table, one row per step, one column per metric.

Each row is appended with one write, so a kill leaves complete rows and at most a torn last one; readers and writers
drop that. A new metric adds a column, and the table is rewritten atomically. No step appears twice: further metrics of
the last step are merged into its row, and `truncate_after` removes the rows that a resumed run will log again.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from blockyard.atomic_files import read_bytes, replacing

Row = dict[str, float]
log = logging.getLogger("blockyard")
FILE = "metrics.csv"


class MetricsWriter:
    """Appends to a run's metrics.csv. Only the process that holds the run's lock may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._columns: list[str] = ["step"]
        self._last: Row | None = None
        self._last_at = 0  # byte offset of the last row
        self._end = 0
        self._pending: list[Row] = []  # rows that a full disk refused
        self._warned = False

    @property
    def last_step(self) -> int | None:
        """Return the step of the last row, or None."""
        self._open()
        last = self._pending[-1] if self._pending else self._last
        return None if last is None else int(last["step"])

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Log `values` at `step`. Steps come in order; a repeated last step is merged into its row.

        If the disk refuses a row, one warning is logged and the row is retried with the next one. Raises ValueError for
        a step before the last one.
        """
        last = self.last_step
        if last is not None and step < last:
            raise ValueError(f"metrics of step {step} come after those of step {last}; truncate_after({step}) first")
        row: Row = {"step": int(step)}
        row.update({str(key): float(value) for key, value in values.items() if value is not None})
        if self._pending:
            if last == step:
                self._pending[-1].update(row)
            else:
                self._pending.append(row)
        else:
            self._pending = [row]
        self._flush(final=False)

    def truncate_after(self, step: int) -> None:
        """Remove all rows after `step`. Raises OSError."""
        self._open()
        rows = [row for row in (*read_metrics(self.path), *self._pending) if row["step"] <= step]
        self._pending = []
        self._rewrite(merge_steps(rows))

    def rows(self) -> list[Row]:
        """Return all rows so far, unwritten ones included."""
        return merge_steps([*read_metrics(self.path), *self._pending])

    def sync(self) -> None:
        """Write all rows to disk. Raises OSError if rows remain that cannot be written."""
        if self._pending:
            self._flush(final=True)
        if self._handle is not None:
            os.fsync(self._handle)

    def close(self) -> None:
        """Sync and close. Raises OSError if rows remain that cannot be written."""
        try:
            self.sync()
        finally:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _flush(self, *, final: bool) -> None:
        try:
            self._open()
            while self._pending:
                self._write(self._pending[0])
                self._pending.pop(0)
            self._warned = False
        except OSError as error:
            if final:
                raise
            if not self._warned:
                log.warning("cannot write %s (%s); rows are kept and written later", self.path, error.strerror)
                self._warned = True

    def _write(self, row: Row) -> None:
        new = [name for name in row if name not in self._columns]
        merges = self._last is not None and self._last["step"] == row["step"]
        merged = {**self._last, **row} if merges and self._last is not None else row
        if new or self._end == 0:  # the header changes, and every row gets a cell more
            self._rewrite(merge_steps([*read_metrics(self.path), merged]), extra=new)
            return
        assert self._handle is not None
        at = self._last_at if merges else self._end
        line = _line_of_row(merged, self._columns)
        written = os.pwrite(self._handle, line, at)
        if written < len(line):  # the disk filled up in the middle of a row: restore the old one
            old = _line_of_row(self._last, self._columns) if merges and self._last else b""
            os.pwrite(self._handle, old, at)
            os.ftruncate(self._handle, at + len(old))
            raise OSError(28, "No space left on device", str(self.path))
        if at + len(line) < self._end:  # the merged row is shorter than the old one
            os.ftruncate(self._handle, at + len(line))
        self._last, self._last_at, self._end = merged, at, at + len(line)

    def _rewrite(self, rows: list[Row], extra: Iterable[str] = ()) -> None:
        columns = [*self._columns, *(name for name in extra if name not in self._columns)]
        lines = [line_of(columns), *(_line_of_row(row, columns) for row in rows)]
        with replacing(self.path) as temporary:
            temporary.write_bytes(b"".join(lines))
        self._reset_handle()
        self._columns = columns
        self._end = sum(map(len, lines))
        self._last = rows[-1] if rows else None
        self._last_at = self._end - len(lines[-1]) if rows else self._end

    def _reset_handle(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    def _open(self) -> None:
        if self._handle is not None or not self.path.exists():
            return
        columns, rows, condition = parse(self.path)
        self._columns = columns
        if condition == "damaged":
            aside = self.path.with_name(f"{self.path.stem}.damaged{self.path.suffix}")
            with replacing(aside) as copy:
                copy.write_bytes(self.path.read_bytes())
            log.warning("%s has damaged lines, which are dropped; the original is kept as %s", self.path, aside.name)
        if condition != "whole":
            self._rewrite(rows)
            return
        self._reset_handle()
        self._end = self.path.stat().st_size
        self._last = rows[-1] if rows else None
        self._last_at = self._end
        if self._last:
            self._last_at -= len(_line_of_row(self._last, columns))


def read_metrics(path: Path) -> list[Row]:
    """Return all complete rows in order of steps; empty cells are absent, `step` is an int.

    Torn or damaged lines are dropped. A missing file gives no rows. Raises OSError for anything but a regular file.
    """
    return parse(path)[1]


def parse(path: Path) -> tuple[list[str], list[Row], Literal["whole", "torn", "damaged"]]:
    """Return columns, rows, and whether the file is whole, has a torn last line, or is damaged.

    Raises OSError for anything but a regular file.
    """
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return ["step"], [], "whole"
    whole, _, torn = data.rpartition(b"\n")
    try:
        table = list(csv.reader(io.StringIO(whole.decode(errors="replace"), newline="")))
    except csv.Error:  # a cell of more than 128 KiB
        table = []
    if not table or table[0][:1] != ["step"] or len(set(table[0])) != len(table[0]):
        return ["step"], [], "damaged" if data else "whole"
    columns = table[0]
    rows: list[Row] = []
    damaged = False
    for cells in table[1:]:
        row = _row(columns, cells)
        if row is None or (rows and row["step"] <= rows[-1]["step"]):
            damaged = True
        else:
            rows.append(row)
    if damaged:
        return columns, rows, "damaged"
    # A last row that was edited by hand would invalidate byte offsets, so it counts as torn and is rewritten.
    last_line = _line_of_row(rows[-1], columns) if rows else line_of(columns)
    if torn or not data.endswith(last_line):
        return columns, rows, "torn"
    return columns, rows, "whole"


def _row(columns: list[str], cells: list[str]) -> Row | None:
    if len(cells) != len(columns):
        return None
    try:
        row: Row = {name: float(cell) for name, cell in zip(columns, cells, strict=True) if cell != ""}
        row["step"] = int(cells[0])
    except ValueError:
        return None
    return row


def merge_steps(rows: Iterable[Row]) -> list[Row]:
    """Return one row per step, in order; later values win."""
    merged: list[Row] = []
    for row in rows:
        if merged and merged[-1]["step"] == row["step"]:
            merged[-1] = {**merged[-1], **row}
        else:
            merged.append(row)
    return merged


def text_of(value: float | None) -> str:
    """Return the text of a cell: empty for None, an integer without a point, else the shortest exact text."""
    if value is None:
        return ""
    # Above 2^53 a float stands for several integers, and its digits would claim one of them.
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and abs(value) < 2**53):
        return str(int(value))
    return repr(float(value))


def line_of(cells: list[str]) -> bytes:
    """Return the bytes of a row in the file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue().encode()


def _line_of_row(row: Row, columns: list[str]) -> bytes:
    return line_of([text_of(row.get(name)) for name in columns])


def lost_rows(folder: Path, step: int, logged: tuple[int, int]) -> str | None:
    """Return a sentence about rows up to `step` that a run's metrics.csv lacks, or None.

    logged: how many rows there were at that step, and the step of the last one
    """
    try:
        rows = [row for row in read_metrics(folder / FILE) if row["step"] <= step]
    except OSError:
        rows = []
    count, last = logged
    if len(rows) >= count and (not count or rows[-1]["step"] >= last):
        return None
    return (
        f"{FILE} has {len(rows)} rows up to step {step}, where {count} were logged; what is missing cannot be restored"
    )
