"""The figure of `blockyard eval resolution=`: a metric over the size of images."""

from __future__ import annotations

from pathlib import Path

from blockyard.evaluate.resolution import Resolutions
from blockyard.inspect._canvas import HIGHLIGHT
from blockyard.inspect.panels import Page, Panel, mark
from blockyard.inspect.panels import draw as draw_pages
from blockyard.runs.load import Loaded


def draw(loaded: Loaded, resolutions: Resolutions, subject: str, path: Path) -> list[Path]:
    """Draw the metric of a run at each size. Sizes that the model cannot read have no point, and an axis label."""
    metric = loaded.objective.best()[0]
    sizes = resolutions.sizes
    read = [size for size in sizes if size.metrics]
    labels = []
    for size in sizes:
        pixels = " x ".join(map(str, size.pixels))
        labels.append(pixels if size.metrics else f"{pixels}\nrefused")
    factors = [size.factor for size in read]
    values = [size.metrics[metric] for size in read]
    marks = [
        mark("plot", factors, values, color=HIGHLIGHT, marker="o", markersize=4, linewidth=1.3),
        mark("axvline", 1, color="#808080", linewidth=0.5, linestyle="--"),
    ]
    panel = Panel(
        marks,
        xlabel="pixels; the dashed line is the size of training",
        ylabel=f"{resolutions.part}/{metric}",
        x_names=labels,
        x_positions=[size.factor for size in sizes],
        numbers=True,
        log2=True,
    )
    title = f"{loaded.folder.name}, {loaded.weights}: {subject}"
    return list(draw_pages([Page(path.stem, title, [[panel]], (5.0, 2.6))], path.parent))
