"""Figures of lines: of a forecast, and of a metric over the size of images.

A forecast has a panel for each channel with history, forecast, band, and truth where it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockyard.evaluate.forecast import WindowForecast
from blockyard.evaluate.resolution import Resolutions
from blockyard.inspect._canvas import HIGHLIGHT, INK, printable, split_pages
from blockyard.inspect.panels import Page, Panel, draw, mark

_ROWS = 8
_PANEL = (7.5, 2.4)  # inches
_HISTORY = 3  # times the horizon, at most, so that the forecast stays readable


def draw_forecast(window: WindowForecast, title: str, folder: Path, name: str) -> Iterator[Path]:
    """Draw NAME.png, and more pages for many channels. Steps count from the last one of the history."""
    pages = []
    for part in split_pages(len(window.channels), _ROWS):
        panels = [_channel(window, channel) for channel in part]
        panels[0].legend = "upper left"
        panels[-1].xlabel = "steps from the end of the history"
        pages.append(Page(name, title, [[panel] for panel in panels], _PANEL))
    return draw(pages, folder)


def _channel(window: WindowForecast, channel: int) -> Panel:
    shown = window.history[-_HISTORY * len(window.forecast) :, channel].numpy()
    ahead = range(1, len(window.forecast) + 1)
    low, high = window.low[:, channel].numpy(), window.high[:, channel].numpy()
    band: dict[str, Any] = {"color": HIGHLIGHT, "alpha": 0.2, "linewidth": 0, "label": f"band {window.level:.0%}"}
    marks = [
        mark("plot", range(1 - len(shown), 1), shown, color=INK, linewidth=0.9, label="history"),
        mark("fill_between", ahead, low, high, **band),
        mark("plot", ahead, window.forecast[:, channel].numpy(), color=HIGHLIGHT, linewidth=1.3, label="forecast"),
        mark("axvline", 0.5, color="#808080", linewidth=0.5),
    ]
    if window.true is not None:
        true = window.true[:, channel].numpy()
        marks.append(mark("plot", ahead, true, color=INK, linewidth=0.9, linestyle="--", label="true"))
    return Panel(marks, printable(window.channels[channel]), numbers=True)


def draw_resolutions(resolutions: Resolutions, metric: str, title: str, folder: Path, name: str) -> Path:
    """Draw NAME.png. Sizes that the model cannot read have no point, and are marked on the axis."""
    sizes = resolutions.sizes
    read = [size for size in sizes if size.metrics]
    labels = [" x ".join(map(str, size.pixels)) + ("" if size.metrics else "\nrefused") for size in sizes]
    values = [size.metrics[metric] for size in read]
    marks = [
        mark("plot", [size.factor for size in read], values, color=HIGHLIGHT, marker="o", markersize=4, linewidth=1.3),
        mark("axvline", 1, color="#808080", linewidth=0.5, linestyle="--"),
    ]
    panel = Panel(
        marks,
        xlabel="pixels; the dashed line is the size of training",
        ylabel=f"{resolutions.part}/{metric}",
        x_names=labels,
        x_places=[size.factor for size in sizes],
        numbers=True,
        log2=True,
    )
    (path,) = draw([Page(name, title, [[panel]], (5.0, 2.6))], folder)
    return path
