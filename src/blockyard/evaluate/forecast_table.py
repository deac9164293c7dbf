"""A forecast as CSV and as text."""

from __future__ import annotations

from pathlib import Path

from blockyard.atomic_files import Formatted, csv_text, write_text
from blockyard.evaluate.forecast import WindowForecast

HEAD = ("step", "time", "channel", "forecast", "low", "high", "true")


def table_rows(window: WindowForecast) -> list[tuple[str, ...]]:
    """Returns a row for each step and channel; time and true value are empty where they are missing or not known."""
    lines = []
    for step in range(len(window.forecast)):
        time = "" if window.times is None else window.times[step]
        for channel, name in enumerate(window.channels):
            values = (part[step, channel].item() for part in (window.forecast, window.low, window.high))
            true = float("nan") if window.true is None else window.true[step, channel].item()
            lines.append((str(step + 1), time, name, *(f"{value:.8g}" for value in values), _number(true)))
    return lines


def write(window: WindowForecast, path: Path) -> Path:
    """Writes the rows as CSV, atomically. Raises OSError."""
    write_text(path, csv_text(HEAD, ([*row[:3], *map(Formatted, row[3:])] for row in table_rows(window))))
    return path


def summary(window: WindowForecast) -> str:
    """Returns a line about the band and, where the truth is known, the mean absolute error of each channel."""
    band = (
        f"band: {window.level:.0%} of the errors of {window.windows:,} validation windows at each step; it covers "
        f"{window.coverage:.0%} of the test split"
    )
    if window.true is None:
        return band
    errors = (window.true - window.forecast).abs().nanmean(0).tolist()
    return "\n".join(
        [
            *(f"{name}: mean absolute error {error:.4g}" for name, error in zip(window.channels, errors, strict=True)),
            band,
        ]
    )


def _number(value: float) -> str:
    return "" if value != value else f"{value:.8g}"
