"""The times of a series' steps as text, and those of the steps that follow."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def as_text(column: pandas.Series[Any]) -> list[str]:
    """Returns the times of a column of numbers or dates, dates without a time of day where all are at midnight."""
    import pandas

    if pandas.api.types.is_numeric_dtype(column):
        return [f"{value:.15g}" for value in column.tolist()]
    return _dates(pandas.DatetimeIndex(pandas.to_datetime(column)))


def following(column: pandas.Series[Any], steps: int) -> list[str] | None:
    """Returns the times of the steps after a column's last; None where its own do not follow a regular calendar.

    Regular are numbers with one distance, and dates whose frequency pandas can tell, such as hours or ends of months.
    """
    import numpy as np
    import pandas

    if len(column) < 3:
        return None
    if pandas.api.types.is_numeric_dtype(column):
        values = column.to_numpy(dtype="float64")
        distance = values[-1] - values[-2]
        if not np.allclose(np.diff(values), distance, rtol=1e-6, atol=0):
            return None
        return as_text(pandas.Series(values[-1] + distance * np.arange(1, steps + 1)))
    dates = pandas.DatetimeIndex(pandas.to_datetime(column))
    with warnings.catch_warnings():  # pandas 4 will return an offset in place of its name; both are read below
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        frequency = pandas.infer_freq(dates)
    if frequency is None:
        return None
    after = pandas.date_range(dates[-1], periods=steps + 1, freq=frequency)[1:]
    midnight = bool((dates == dates.normalize()).all())
    return _dates(after) if midnight else [date.isoformat(sep=" ") for date in after]


def _dates(dates: Sequence[Any]) -> list[str]:
    midnight = all(date == date.normalize() for date in dates)
    return [date.isoformat(sep=" ").partition(" ")[0] if midnight else date.isoformat(sep=" ") for date in dates]
