"""The figure of an evaluation on images of other sizes: the chosen metric over the size."""

from __future__ import annotations

from pathlib import Path

from blockyard.evaluate.resolution import Resolutions
from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, canvas, save


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
