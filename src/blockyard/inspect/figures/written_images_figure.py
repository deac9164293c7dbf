"""What a model drew for the first sources of a split: the source, a true image, the drawing, and what a judge reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from blockyard.evaluate.written import Written
from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, canvas, save, wrap
from blockyard.runs.load import Loaded

ACROSS = 4  # pairs of images in a row of the figure
_LINE = 26  # characters of a source above its images


def draw_written_images(loaded: Loaded, written: Written, folder: Path) -> Path | None:
    """Draw drawn-PART.png; None for a run that draws no images.

    Below each drawing stands what the judge reads in it, in another colour where that is not what is asked for.
    """
    levels = loaded.data.spec.levels
    if loaded.data.spec.modality != "image" or not written.outputs or levels is None:
        return None
    beam = "" if written.beam is None else f"-beam{written.beam}"
    right = sum(text == reference for _, reference, text in written.texts)
    title = (
        f"{loaded.folder.name}, {loaded.weights}: the first of the {written.part} split, true and drawn; "
        f"{right} of {len(written.texts)} are read as asked for"
    )
    rows = -(-len(written.outputs) // ACROSS)
    with canvas(rows, 2 * ACROSS, (1.15, 1.6), title) as (figure, axes):
        panels = [axes[row][column : column + 2] for row in range(rows) for column in range(0, 2 * ACROSS, 2)]
        for pair, images, text in zip(panels, written.outputs, written.texts, strict=False):
            _draw(pair, images, text, levels)
        for panel in (panel for row in axes for panel in row):
            panel.set_axis_off()
        return save(figure, folder, f"drawn-{written.part}{beam}")


def _draw(panels: Sequence[Any], images: tuple[Tensor, Tensor], text: tuple[str, str, str], levels: int) -> None:
    """A true image and a drawing side by side. text: source, reference, and what is read in the drawing."""
    source, reference, reading = text
    for panel, image in zip(panels, images, strict=True):
        pixels = image.movedim(0, -1).float() / (levels - 1)  # (height, width, C)
        panel.imshow(pixels.expand(*pixels.shape[:2], 3).numpy(), vmin=0, vmax=1, interpolation="nearest")
    panels[0].set_title(wrap(source, _LINE), loc="left", pad=2, fontsize=6)
    panels[1].set_title("drawn", loc="left", pad=2, fontsize=6)
    colour = INK if reading == reference else HIGHLIGHT
    below = {"transform": panels[1].transAxes, "fontsize": 6, "va": "top", "color": colour}
    panels[1].text(0, -0.04, wrap(f"read: {reading}", _LINE), **below)
