"""The forecast of one window in the units of the data, with a band from the errors on the validation split.

The band of a step goes from the forecast plus the lower to the forecast plus the upper quantile of the errors that the
model made at this step ahead over all windows of the validation split: no distribution is assumed. Windows overlap and
series drift, so that its coverage over the test split is printed beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from blockyard.atomic_files import Formatted, csv_text, is_regular, write_text
from blockyard.contracts import Forecaster
from blockyard.data.series_file import SeriesFile
from blockyard.data.splits.series import SeriesData, SeriesSplit
from blockyard.errors import UserError, shortened
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load, splits_of

_BATCH = 512
LEVEL = 0.9
HEAD = ("step", "time", "channel", "forecast", "low", "high", "true")  # columns of the CSV


@dataclass(frozen=True)
class WindowForecast:
    """The steps after one history, in the units of the data. C channels, H steps.

    history: (L, C); forecast, low, high: (H, C); true: (H, C) with NaN where missing, or None where not known yet
    level: share of the validation errors inside the band; windows: from which it was computed
    coverage: share of the values of the test split inside its bands
    times: of the H steps as text; None where the data has none, or where those to come are not known
    """

    channels: tuple[str, ...]
    history: Tensor
    forecast: Tensor
    low: Tensor
    high: Tensor
    true: Tensor | None
    level: float
    windows: int
    coverage: float
    times: tuple[str, ...] | None = None


def forecast(
    run: str | os.PathLike[str] | RunFolder,
    file: str | os.PathLike[str] | None = None,
    *,
    level: float = LEVEL,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: Sequence[str] = (),
) -> tuple[WindowForecast, Loaded]:
    """Return the forecast of the last window of the test split, or of the steps after the last rows of a table.

    file: a table with the columns of the run's data, in order of time; its last `data.history` rows are read

    Raises UserError for a level outside (0, 1), for a run that does not forecast series, and for a table without
    these columns or with fewer rows.
    """
    if not 0 < level < 1:
        raise UserError(f"level={level:g}: expected a number between 0 and 1, such as {LEVEL}")
    loaded = load(run, which=which, outputs=outputs, allow=tuple(allow))
    data, objective = loaded.data, loaded.objective
    if not isinstance(data, SeriesData) or not isinstance(objective, Forecaster):
        raise UserError(
            f"{loaded.folder.name} does not forecast series; use a run of objective=forecast or objective=next_patch"
        )
    _, validation, test = splits_of(loaded)
    assert isinstance(validation, SeriesSplit)
    assert isinstance(test, SeriesSplit)
    true = None
    if file is None:
        start = int(test.starts[-1])
        window = test.values[start:][: test.history + test.horizon].double() * test.std + test.mean
        history, true = window[: test.history], window[test.history :]
        times = data.times()
        if times is not None:
            times = times[start + test.history :][: test.horizon]
    else:
        path = Path(file)
        if not is_regular(path.expanduser()):
            raise UserError(f"file={shortened(str(path))}: no such file")
        columns = tuple(map(str, data.channel_names))
        table = SeriesFile(path=str(path), columns=columns, time=getattr(data, "time", None), history=data.history)
        history = _history(table, data)
        times = table.times_after(test.horizon)
    errors = _errors(loaded, validation)
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=errors.dtype)
    # One step at a time: torch takes quantiles of 16 million numbers at most.
    low, high = torch.stack([torch.nanquantile(step, edges, dim=0) for step in errors.unbind(1)], 1)  # (H, C) each
    test_errors = _errors(loaded, test)
    observed = ~test_errors.isnan()
    inside = ((test_errors >= low) & (test_errors <= high))[observed].float().mean()
    standardized = ((history - test.mean) / test.std).float()
    prediction = _predict(loaded, standardized[None], data)[0] * test.std + test.mean
    result = WindowForecast(
        channels=tuple(map(str, data.channel_names)),
        history=history,
        forecast=prediction,
        low=prediction + low,
        high=prediction + high,
        true=true,
        level=level,
        windows=len(errors),
        coverage=float(inside),
        times=None if times is None else tuple(times),
    )
    return result, loaded


def _history(table: SeriesFile, data: SeriesData) -> Tensor:
    """Return the last steps of a table (L, C) float64, checked as the data of a run is."""
    values = table.read()
    if len(values) < data.history:
        raise UserError(f"file={table.path}: it has {len(values)} rows, and the run reads a history of {data.history}")
    history = values[-data.history :]
    empty = [name for name, column in zip(table.channel_names, history.T, strict=True) if bool(column.isnan().all())]
    if empty:
        raise UserError(f"file={table.path}: column {', '.join(empty)} has no value in the last {data.history} rows")
    return history


def _errors(loaded: Loaded, split: SeriesSplit) -> Tensor:
    """Return true values minus forecasts (windows, H, C), in the units of the data; NaN where a value is missing."""
    steps = torch.arange(split.history + split.horizon)
    parts = []
    for starts in split.starts.split(_BATCH):
        window = split.values[starts[:, None] + steps]  # (B, history + horizon, C)
        prediction = _predict(loaded, window[:, : split.history], loaded.data)
        parts.append((window[:, split.history :].double() - prediction) * split.std)
    return torch.cat(parts)


@torch.no_grad()
def _predict(loaded: Loaded, history: Tensor, data: object) -> Tensor:
    """Return the steps (B, H, C) float64 after standardized histories (B, L, C), with channels apart or together."""
    assert isinstance(data, SeriesData)
    assert isinstance(loaded.objective, Forecaster)
    model: nn.Module = loaded.model
    if data.channels == "together":
        return loaded.objective.forecast(model, history, data.horizon).double()
    alone = history.transpose(1, 2).flatten(0, 1)[..., None]  # (B C, L, 1)
    prediction = loaded.objective.forecast(model, alone, data.horizon)  # (B C, H, 1)
    return prediction.unflatten(0, (-1, history.shape[2]))[..., 0].transpose(1, 2).double()


def table_rows(window: WindowForecast) -> list[tuple[str, ...]]:
    """Return a row for each step and channel; time and true value are empty where they are missing or not known."""
    lines = []
    for step in range(len(window.forecast)):
        time = "" if window.times is None else window.times[step]
        for channel, name in enumerate(window.channels):
            values = [part[step, channel].item() for part in (window.forecast, window.low, window.high)]
            true = ""
            if window.true is not None and not window.true[step, channel].isnan():
                true = f"{window.true[step, channel].item():.8g}"
            lines.append((str(step + 1), time, name, *(f"{value:.8g}" for value in values), true))
    return lines


def write(window: WindowForecast, path: Path) -> Path:
    """Write the rows as CSV, atomically. Raises OSError."""
    rows = [[*row[:3], *map(Formatted, row[3:])] for row in table_rows(window)]
    write_text(path, csv_text(HEAD, rows))
    return path


def summary(window: WindowForecast) -> str:
    """Return a line about the band and, where the truth is known, the mean absolute error of each channel."""
    band = (
        f"band: {window.level:.0%} of the errors of {window.windows:,} validation windows at each step; it covers "
        f"{window.coverage:.0%} of the test split"
    )
    if window.true is None:
        return band
    lines = []
    errors = (window.true - window.forecast).abs().nanmean(0).tolist()
    for name, error in zip(window.channels, errors, strict=True):
        lines.append(f"{name}: mean absolute error {error:.4g}")
    return "\n".join([*lines, band])
