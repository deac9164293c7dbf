"""Shared parts of time series: splits by time, standardizing, and windows of a history and the steps after it.

    values    |------------ train ------------|-- validation --|----- test -----|     in order of time
    window         [history][horizon]                                                 starts at every step
                                     [history][horizon]                               a target lies in one split only

A window of the validation or test split begins up to `history` steps before that split, so that all of its steps are
predicted; every window counts.
"""

from __future__ import annotations

import math
import re
import warnings
import zoneinfo
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch, BatchSize, DataSpec, Length, Positive, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.split import column_moments, input_deviation
from blockyard.errors import UserError

if TYPE_CHECKING:
    import pandas

# Orders of day, month and year in dates of digits, with any mark between them.
_ORDERS = {
    "%d{0}%m{0}%Y": "day{0}month{0}year",
    "%m{0}%d{0}%Y": "month{0}day{0}year",
    "%d{0}%m{0}%y": "day{0}month{0}year",
    "%m{0}%d{0}%y": "month{0}day{0}year",
    "%y{0}%m{0}%d": "year{0}month{0}day",
}
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_MARK = re.compile(r"\d{1,2}([/.\-\s]+)\d")
_MONTHS = 12  # so many dates a day apart may be the months of a year, in the other order


@dataclass(kw_only=True, eq=False)
class SeriesData(LoadedData):
    """Windows of a multivariate time series. Subclasses set `channel_names` and implement `read`.

    Options:
        history: steps that the model reads
        horizon: steps that it predicts
        split: shares of the steps for training, validation and test, in order of time, or three numbers of steps
        channels: apart makes each channel of a window a sample of its own; together gives the model all of them
        train_size: training windows to keep, with all of their channels; null keeps all, and a smaller size selects a
            subset of a larger one. Moments are those of all steps
        validation_size: validation windows to keep, likewise
        test_size: test windows to keep, likewise
    """

    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 512
    history: Length = 336
    horizon: Length = 96
    split: tuple[Positive, Positive, Positive] = (0.7, 0.1, 0.2)
    channels: Literal["apart", "together"] = "apart"

    @property
    @abstractmethod
    def channel_names(self) -> Sequence[str]:
        """The names of the channels."""

    @property
    def spec(self) -> DataSpec:
        """Histories of one length, and real-valued targets of the horizon; a slice for each of several channels."""
        channels = len(self.channel_names)
        slices: tuple[str, ...] = ()
        if self.channels == "apart":
            if channels > 1:
                slices = tuple(self.channel_names)
            channels = 1
        return DataSpec(
            "series", (self.history, channels), target="values", values=(self.horizon, channels), slices=slices
        )

    @abstractmethod
    def read(self) -> Tensor:
        """Read the values (T, C) float64 in order of time; NaN where one is missing."""

    def times(self) -> list[str] | None:
        """Read the time of each step, as text; None where the data has none."""
        return None

    def times_after(self, steps: int) -> list[str] | None:
        """Return the times of the steps after the last; None where they are not known."""
        return None

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read the series, cut it by time, and standardize each channel by its training steps.

        Raises UserError for a split that is shorter than a window, and as `input_deviation` does.
        """
        values = self.read()
        first, second, end = self._bounds(len(values))
        mean, std = column_moments(values[:first])
        std = input_deviation(mean, std, self.channel_names, "channels")
        self._fingerprint = sha256([values, f"{first} {second} {end}"])
        standardized = ((values - mean) / std).float()
        parts = {
            "training": (0, first),
            "validation": (first - self.history, second),
            "test": (second - self.history, end),
        }
        splits = []
        for number, (name, steps) in enumerate(parts.items()):
            split = self._windows(standardized, name, *steps, (mean, std))
            split.starts = split.starts[self.kept(number, len(split.starts))]
            splits.append(split)
        return Splits(*splits)

    def _windows(self, values: Tensor, name: str, start: int, stop: int, moments: tuple[Tensor, Tensor]) -> SeriesSplit:
        last = stop - self.history - self.horizon  # the latest start
        if start < 0 or last < start:
            raise UserError(
                f"data.history={self.history} and data.horizon={self.horizon}: the {name} split has "
                f"{stop - max(start, 0)} steps with the history before it, fewer than one window; use smaller ones or "
                "another data.split"
            )
        starts = torch.arange(start, last + 1)
        return SeriesSplit(values, starts, (self.history, self.horizon), self.channels == "apart", moments)

    def _bounds(self, steps: int) -> tuple[int, int, int]:
        """Return the steps at which the training, the validation and the test split end."""
        train, _, test = self.split
        if sum(self.split) <= 1 + 1e-9:  # shares such as 0.7, 0.1 and 0.2 add up to a little more than 1
            if not math.isclose(sum(self.split), 1):
                raise UserError(f"data.split={list(self.split)}: shares must add up to 1")
            test_steps = int(steps * test)
            first = int(steps * train)
            return first, steps - test_steps, steps
        first, second, third = (int(count) for count in self.split)
        if first + second + third > steps or (first, second, third) != tuple(self.split):
            raise UserError(f"data.split={list(self.split)}: three shares that add up to 1, or at most {steps} steps")
        return first, first + second, first + second + third


class SeriesSplit:
    """Windows of one split: inputs (B, history, C), target (B, horizon, C), float32, NaN where a value is missing.

    values: (T, C), standardized; starts: (windows,) int64, the first step of each window
    apart: whether each channel of a window is a separate sample, with C = 1
    mean, std: (C,), of the training split, in the units of the data
    """

    def __init__(
        self, values: Tensor, starts: Tensor, lengths: tuple[int, int], apart: bool, moments: tuple[Tensor, Tensor]
    ) -> None:
        self.values, self.starts, self.apart = values, starts, apart
        self.history, self.horizon = lengths
        self.mean, self.std = moments

    def __len__(self) -> int:
        return len(self.starts) * (self.values.shape[1] if self.apart else 1)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the windows `order` (B,); with channels apart, all channels of a window follow each other."""
        steps = torch.arange(self.history + self.horizon)
        if not self.apart:
            windows = self.values[self.starts[order, None] + steps]  # (B, history + horizon, C)
            return Batch(windows[:, : self.history], windows[:, self.history :])
        channels = self.values.shape[1]
        channel = order % channels
        windows = self.values[self.starts[order // channels, None] + steps]  # (B, history + horizon, C)
        windows = windows.gather(2, channel[:, None, None].expand(-1, len(steps), 1))
        return Batch(windows[:, : self.history], windows[:, self.history :], slice=channel)


def as_text(column: pandas.Series[Any]) -> list[str]:
    """Return the times of a column of numbers or dates, dates without a time of day where all are at midnight."""
    import pandas

    times = parsed_times(column)
    if pandas.api.types.is_numeric_dtype(times):
        return [f"{value:.15g}" for value in times.tolist()]
    return _dates(pandas.DatetimeIndex(times))


def following(column: pandas.Series[Any], steps: int) -> list[str] | None:
    """Return the times of the steps after the last one of a column; None where they do not follow a regular calendar.

    Regular are numbers with one distance, and dates with a frequency of pandas, such as hours or ends of months.
    """
    import pandas

    times = parsed_times(column)
    if len(times) < 3:
        return None
    if pandas.api.types.is_numeric_dtype(times):
        values = times.to_numpy(dtype="float64")
        distance = values[-1] - values[-2]
        if not np.allclose(np.diff(values), distance, rtol=1e-6, atol=0):
            return None
        return as_text(pandas.Series(values[-1] + distance * np.arange(1, steps + 1)))
    dates = pandas.DatetimeIndex(times)
    frequency = _frequency(dates)
    if frequency is None:
        return None
    after = pandas.date_range(dates[-1], periods=steps + 1, freq=frequency)[1:]
    if bool((dates == dates.normalize()).all()):
        return _dates(after)
    return [date.isoformat(sep=" ") for date in after]


def parsed_times(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """Return a column of numbers as it is, any other as dates: NaT for cells that are none, UTC where offsets change.

    Dates of digits, such as 1/2/2020 10:00, are read in an order of day, month and year in which all cells are dates
    that do not go back; of several such orders the only one in which they follow a regular calendar. Raises UserError
    where more than one order is left.
    """
    import pandas

    filled = column.dropna()
    if pandas.api.types.is_numeric_dtype(column) or not len(filled):
        return column
    first = str(filled.iloc[0])
    readings = {order: _to_datetime(column, form) for form, order in _formats(first)}
    if not readings:
        return _to_datetime(column, None)
    fitting: dict[str, pandas.Series[Any]] = {}
    for order, dates in readings.items():
        fits = dates.notna().sum() == len(filled) and dates.dropna().is_monotonic_increasing
        if fits and not any(dates.equals(other) for other in fitting.values()):
            fitting[order] = dates
    if len(fitting) > 1 and len(filled) > _MONTHS:
        regular = {order: dates for order, dates in fitting.items() if _frequency(pandas.DatetimeIndex(dates))}
        if len(regular) == 1:
            fitting = regular
    if len(fitting) > 1:
        raise UserError(f"{first} may be {' or '.join(fitting)}; write dates as 2020-01-31")
    # Where no order fits, a message about a cell is right in the order that suits most of the others.
    return max(fitting.values() or readings.values(), key=lambda dates: (dates.diff() > pandas.Timedelta(0)).sum())


def _formats(text: str) -> Iterator[tuple[str, str]]:
    """Yield each format that reads a text as a date of digits, with its order of day, month and year."""
    mark = _MARK.match(text)
    if mark is None:
        return
    clocks = [""]
    for between in " T":
        for clock in _CLOCKS:
            clocks += [f"{between}{clock}", f"{between}{clock}%z"]
    for form, order in _ORDERS.items():
        for clock in clocks:
            whole = form.format(mark[1]) + clock
            try:
                datetime.strptime(text, whole)
            except ValueError:
                continue
            yield whole, order.format(mark[1])


def _to_datetime(column: pandas.Series[Any], form: str | None) -> pandas.Series[Any]:
    """Return the dates of a column in one format, or in a format that pandas guesses; NaT where a cell is none."""
    import pandas

    try:
        return pandas.to_datetime(column, format=form, errors="coerce")
    except ValueError:  # offsets from UTC that change, as with summer time
        return pandas.to_datetime(column, format=form, errors="coerce", utc=True)


def _frequency(dates: pandas.DatetimeIndex) -> Any:
    """Return the frequency of dates, such as hours or ends of months; None where they have none."""
    import pandas

    with warnings.catch_warnings():  # pandas 4 will return an offset in place of its name; both are read
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        if len(dates) >= 3:
            return pandas.infer_freq(dates)
        return None


def occurs_twice(time: datetime) -> bool:
    """Return whether a local time occurs twice in some time zone, because the clock was set back there."""
    for name in zoneinfo.available_timezones():
        local = time.replace(tzinfo=zoneinfo.ZoneInfo(name))
        first = local.replace(fold=0).utcoffset()
        second = local.replace(fold=1).utcoffset()
        if first is not None and second is not None and first > second:
            return True
    return False


def _dates(dates: Sequence[Any]) -> list[str]:
    texts = [date.isoformat(sep=" ") for date in dates]
    if all(date == date.normalize() for date in dates):  # of midnight only the day is shown
        return [text.partition(" ")[0] for text in texts]
    return texts
