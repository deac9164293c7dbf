"""A time series of your own in a table: one row per time step, one column per channel.

Source: the tables of Zhou et al. 2021, Informer (arXiv 2012.07436), such as ETTh1.csv
Reference: pandas.read_csv, pyarrow.Table.to_pandas

Splits and windows are those of the published comparisons, except that every window of the test split counts.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockyard.contracts import FittingValue, Text
from blockyard.data.files.table_lines import location
from blockyard.data.files.tables import TYPED, check_unique, encoding_of, names_of, read_typed
from blockyard.data.splits.series import SeriesData, as_text, following, occurs_twice, parsed_times
from blockyard.errors import SHOWN, UserError

if TYPE_CHECKING:
    import pandas

# The largest shares of a series, so that several windows fit into each split.
LONGEST_HISTORY = 0.25
LONGEST_HORIZON = 0.05


@dataclass(kw_only=True, eq=False)
class SeriesFile(SeriesData):
    """Reads CSV (also .gz, .bz2, .zip, .xz), Parquet, Arrow or Feather. Empty and blank cells are missing values.

    Options:
        path: the file
        columns: the channels; null takes every column but the time, and no index of pandas
        time: the column, or the index of pandas, of dates or numbers by which rows must be in order; null takes rows
            as they are
    """

    path: Text = "data/series.csv"
    columns: tuple[Text, ...] | None = None
    time: Text | None = None

    def missing(self) -> str | None:
        """Return a message that names the missing file and the remedy, or None."""
        path = Path(self.path).expanduser()
        if path.is_file():
            return None
        return f"no file {path.absolute()}; set data.path=FILE.csv, a row per time step"

    def fitting(self, length: Callable[[str], int], source_length: Callable[[str], int]) -> list[FittingValue]:
        """Return the column of times, and a history and a horizon that fit into a short series."""
        if self.missing() is not None:
            return []
        table = self._table()
        values = []
        time = None
        if self.time is None and self.columns is None:
            time = _first_of_dates(table)
        if time is not None:
            values.append(FittingValue("data.time", time, "its first cells are dates"))
        steps = len(table)
        for name, share in (("history", LONGEST_HISTORY), ("horizon", LONGEST_HORIZON)):
            most = max(1, int(steps * share))
            if getattr(self, name) > most:
                values.append(FittingValue(f"data.{name}", most, f"{share * 100:.0f} % of the {steps:,} steps"))
        return values

    @cached_property
    def channel_names(self) -> Sequence[str]:
        """The columns that are read. Reads the header only; without a file, the option's columns, or "value"."""
        if self.columns is not None:
            return self.columns
        if self.missing() is not None:
            return ("value",)
        return [name for name in self._header() if name != self.time]

    def read(self) -> Tensor:
        """Read all rows. Raises UserError naming rows and columns that cannot be used."""
        table = self._table()
        needed = list(self.channel_names)
        if self.time:
            needed.append(self.time)
        absent = [name for name in needed if name not in table]
        if absent:
            names = ", ".join(repr(str(name)) for name in table.columns)
            raise UserError(f"{self.path} has no column {', '.join(map(repr, absent))}; it has {names}")
        self._check_unique()
        if self.time is not None:
            self._check_order(table[self.time])
        return torch.stack([self._channel(name, table[name]) for name in self.channel_names], dim=1)

    def times(self) -> list[str] | None:
        """Return the column of times as text."""
        if self.time is None:
            return None
        return as_text(self._table()[self.time])

    def times_after(self, steps: int) -> list[str] | None:
        """Return the times that continue the column, where its last `history` rows follow a regular calendar."""
        if self.time is None:
            return None
        return following(parsed_times(self._table()[self.time]).tail(self.history), steps)

    def _channel(self, name: str, column: pandas.Series[Any]) -> Tensor:
        import pandas

        numbers = pandas.to_numeric(column, errors="coerce")
        blank = column.astype(str).str.strip() == ""
        wrong = column.notna() & numbers.isna() & ~blank
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise UserError(
                f"{self.path}, {self._location(row)}, column {name}: {column.iloc[row]!r} is not a number "
                f"({int(wrong.sum())} such cells); set data.time={name} if it holds dates, or choose channels with "
                "data.columns=[...]"
            )
        values = torch.tensor(numbers.to_numpy(dtype="float64", na_value=float("nan")))
        if values.isinf().any():
            raise UserError(
                f"{self.path}, {self._location(int(values.isinf().nonzero()[0]))}, column {name}: infinite value"
            )
        return values

    def _check_order(self, column: pandas.Series[Any]) -> None:
        times = parsed_times(column)
        bad = times.isna().to_numpy()
        if bad.any():
            row = int(bad.argmax())
            raise UserError(
                f"{self.path}, {self._location(row)}, column {self.time}: {column.iloc[row]!r} is neither date nor "
                "number"
            )
        steps = times.diff().iloc[1:]
        late = (steps <= steps * 0).to_numpy()  # a zero of their own type: times are numbers or dates
        if not late.any():
            return
        row = int(late.argmax()) + 1
        order = (
            f"{self.path}, {self._location(row)}, column {self.time}: {column.iloc[row]} does not come after "
            f"{column.iloc[row - 1]}"
        )
        if _set_back(times.iloc[row - 1], times.iloc[row]):
            dots = ["..."] if len(self.channel_names) > SHOWN else []
            channels = ",".join([*self.channel_names[:SHOWN], *dots])
            with_offset = f"{times.iloc[row]:%Y-%m-%d %H:%M}+01:00"
            raise UserError(
                f"{order}: local times have this hour twice, because the clock was set back at the end of summer time; "
                f"keep both and write times with their offset from UTC, such as {with_offset}, or use data.time=null "
                f"data.columns=[{channels}], which takes the rows as they are"
            )
        raise UserError(f"{order}; sort the rows by time and remove repeated ones")

    def _check_unique(self) -> None:
        """Raise UserError for a name of several columns that are read. pandas would call the second of them x.1."""
        import pandas

        path = Path(self.path).expanduser()
        if path.suffix in TYPED:
            header = names_of(path, path.suffix)
        else:
            first = pandas.read_csv(
                path, header=None, nrows=1, dtype=str, keep_default_na=False, encoding=encoding_of(path)
            )
            header = first.iloc[0].tolist()
        wanted = header if self.columns is None else [*self.columns, self.time]
        check_unique(path, header, [name for name in wanted if name])

    def _location(self, row: int) -> str:
        return location(Path(self.path).expanduser(), row)

    def _header(self) -> list[str]:
        return [str(name) for name in self._read(rows=0).columns]

    def _table(self) -> pandas.DataFrame:
        """Return the rows with an index of pandas that is not a mere count as a column, called index without a name."""
        import pandas

        table = self._read()
        if isinstance(table.index, pandas.MultiIndex):
            names = ", ".join(str(name) for name in table.index.names)
            raise UserError(
                f"{self.path} has an index of several levels ({names}), and a series has one row for each time; keep "
                "one series, or unstack the others into columns, and write the file again"
            )
        if isinstance(table.index, pandas.RangeIndex):
            return table
        return table.reset_index()

    def _read(self, rows: int | None = None) -> pandas.DataFrame:
        import pandas

        path = Path(self.path).expanduser()
        if path.suffix in TYPED:
            names = {f"data.columns={name}": name for name in names_of(path, path.suffix)}
            return read_typed(path, path.suffix, names).table.to_pandas()
        try:
            return pandas.read_csv(path, nrows=rows, index_col=False, encoding=encoding_of(path))
        except (ValueError, OSError, ImportError, EOFError, zipfile.BadZipFile) as error:  # parser errors: ValueError
            raise UserError(f"{self.path} cannot be read as a table: {' '.join(str(error).split())}") from error


def _first_of_dates(table: pandas.DataFrame) -> str | None:
    """Return the first column of dates, or of texts that are dates; None where there is none."""
    import pandas

    for name in table.columns:
        cells = table[name].head(SHOWN)
        if pandas.api.types.is_numeric_dtype(cells):
            continue
        try:
            times = parsed_times(cells)
        except UserError:  # dates of which the order of day and month is not clear in so few
            return str(name)
        if times.notna().all():
            return str(name)
    return None


def _set_back(before: Any, time: Any) -> bool:
    """Return whether the clock may have been set back between the local times of two rows."""
    import pandas

    if not isinstance(time, pandas.Timestamp) or time.tz is not None:
        return False
    return before - time <= timedelta(hours=1) and occurs_twice(time.to_pydatetime())
