"""The figure of `blockyard forecast`: for each channel the history, the forecast, its band, and the truth if known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.evaluate.forecast import WindowForecast
from blockyard.inspect._canvas import HIGHLIGHT, INK, printable, split_pages
from blockyard.inspect.panels import Page, Panel, mark
from blockyard.inspect.panels import draw as draw_pages
from blockyard.runs.load import Loaded

_ROWS = 8
_PANEL = (7.5, 2.4)  # inches
_HISTORY = 3  # times the horizon, at most, so that the forecast stays readable


def draw(loaded: Loaded, window: WindowForecast, subject: str, path: Path) -> list[Path]:
    """Draw a forecast, on several pages for many channels. Steps count from the last one of the history."""
    title = f"{loaded.folder.name}, {loaded.weights}: {subject}"
    pages = []
    for part in split_pages(range(len(window.channels)), _ROWS):
        panels = [_channel(window, channel) for channel in part]
        panels[0].legend = "upper left"
        panels[-1].xlabel = "steps from the end of the history"
        pages.append(Page(path.stem, title, [[panel] for panel in panels], _PANEL))
    return list(draw_pages(pages, path.parent))


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
