"""The figure of a forecast: a panel for each channel with history, forecast, band, and truth where it is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockyard.evaluate.forecast import WindowForecast
from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, canvas, printable, save, split_pages

_ROWS = 8
_PANEL = (7.5, 2.4)  # inches
_HISTORY = 3  # times the horizon, at most, so that the forecast stays readable


def draw_forecast(window: WindowForecast, title: str, folder: Path, name: str) -> Iterator[Path]:
    """Draw NAME.png, and more pages for many channels. Steps count from the last one of the history."""
    for page, part in enumerate(split_pages(len(window.channels), _ROWS)):
        with canvas(len(part), 1, _PANEL, title) as (figure, axes):
            for (panel,), channel in zip(axes, part, strict=True):
                _draw(panel, window, channel)
                panel.set_title(printable(window.channels[channel]), pad=3)
            axes[0][0].legend(fontsize=7, frameon=False, loc="upper left")
            axes[-1][0].set_xlabel("steps from the end of the history")
            yield save(figure, folder, name, page)


def _draw(panel: Any, window: WindowForecast, channel: int) -> None:
    shown = window.history[-_HISTORY * len(window.forecast) :, channel]
    ahead = range(1, len(window.forecast) + 1)
    panel.plot(range(1 - len(shown), 1), shown.numpy(), color=INK, linewidth=0.9, label="history")
    low, high = window.low[:, channel].numpy(), window.high[:, channel].numpy()
    panel.fill_between(ahead, low, high, color=HIGHLIGHT, alpha=0.2, linewidth=0, label=f"band {window.level:.0%}")
    panel.plot(ahead, window.forecast[:, channel].numpy(), color=HIGHLIGHT, linewidth=1.3, label="forecast")
    if window.true is not None:
        panel.plot(ahead, window.true[:, channel].numpy(), color=INK, linewidth=0.9, linestyle="--", label="true")
    panel.axvline(0.5, color="#808080", linewidth=0.5)
