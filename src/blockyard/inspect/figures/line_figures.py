"""Figures of lines: of a forecast, and of a metric over the size of images.

A forecast has a panel for each channel with history, forecast, band, and truth where it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockyard.evaluate.forecast import WindowForecast
from blockyard.evaluate.resolution import Resolutions
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


def draw_resolutions(resolutions: Resolutions, metric: str, title: str, folder: Path, name: str) -> Path:
    """Draw NAME.png. Sizes that the model cannot read have no point, and are marked on the axis."""
    sizes = resolutions.sizes
    read = [(size.factor, size.metrics[metric]) for size in sizes if size.metrics]
    with canvas(1, 1, (5.0, 2.6), title) as (figure, axes):
        panel = axes[0][0]
        panel.set_xscale("log", base=2)
        panel.plot(*zip(*read, strict=True), color=HIGHLIGHT, marker="o", markersize=4, linewidth=1.3)
        panel.axvline(1, color="#808080", linewidth=0.5, linestyle="--")
        labels = [f"{' x '.join(map(str, size.pixels))}{'' if size.metrics else chr(10) + 'refused'}" for size in sizes]
        panel.set_xticks([size.factor for size in sizes], labels, fontsize=7)
        panel.minorticks_off()
        panel.set_xlabel("pixels; the dashed line is the size of training", color=INK)
        panel.set_ylabel(f"{resolutions.part}/{metric}")
        return save(figure, folder, name)
