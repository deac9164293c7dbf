"""Figures as plain data: a kind of inspection declares pages of panels, and only this module draws them.

Page           one file NAME.png: a title above rows of panels of one size; pages of one name are numbered
  Panel        a pair of axes with a title and labels; None instead of a panel leaves its cell empty
    marks      Heat, Line, Points, Bars, Band, Rule, Box, Text; later ones lie over earlier ones
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from blockyard.atomic_files import replacing
from blockyard.inspect._canvas import (
    DIVERGING,
    HIGHLIGHT,
    INK,
    SEQUENTIAL,
    add_colorbar,
    canvas,
    label_ticks,
    plain_ticks,
    save,
)

OVERLAY = "overlay"  # transparent to orange, for weights over a picture
GRAY = "gray"
_FEW_DPI = 80  # of pictures of few colours, of which a page holds many
_FEW_COLOURS = 96


@dataclass
class Heat:
    """A table (rows, columns) in colours, or an image (height, width, 3); NaN has the colour `missing`.

    low, high: the ends of the colour scale; power: of a scale that resolves small entries; log: a logarithmic scale
    stretched: the table fills the panel; otherwise its cells are squares
    extent: left, right, bottom, top of the table; upwards: its first row is at the bottom
    """

    table: Tensor | np.ndarray
    high: float = 1.0
    low: float = 0.0
    colours: str = SEQUENTIAL
    power: float = 1.0
    log: bool = False
    missing: str = "none"
    stretched: bool = False
    extent: tuple[float, float, float, float] | None = None
    upwards: bool = False

    def draw(self, axes: Any) -> Any:
        """Draw on matplotlib's axes, and return the artist that has the colour scale."""
        import matplotlib
        from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize, PowerNorm

        if self.colours == OVERLAY:
            ends = [(1.0, 0.45, 0.0, 0.0), (1.0, 0.45, 0.0, 0.9)]  # the larger a weight, the more it covers
            colours: Any = LinearSegmentedColormap.from_list(OVERLAY, ends)
        else:
            colours = matplotlib.colormaps[self.colours].with_extremes(bad=self.missing)
        norm = Normalize(self.low, self.high)
        if self.log:
            norm = LogNorm(self.low, self.high)
        elif self.power != 1:
            norm = PowerNorm(self.power, self.low, self.high)
        return axes.imshow(
            np.ma.masked_invalid(np.asarray(self.table)),
            cmap=colours,
            norm=norm,
            interpolation="nearest",
            aspect="auto" if self.stretched else "equal",
            extent=self.extent,
            origin="lower" if self.upwards else "upper",
        )


def signed(table: Tensor, limit: float | None = None, *, stretched: bool = False) -> Heat:
    """Return a table in two colours around zero. limit: the end of the scale; by default the largest entry"""
    if limit is None:
        limit = float(table.abs().max()) or 1.0
    return Heat(table, limit, -limit, DIVERGING, stretched=stretched)


@dataclass
class Mark:
    """A call of a method of matplotlib's axes, made when the panel is drawn.

    at_edge: y is a share of the panel's height; scaled: the artist has a colour scale
    """

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    at_edge: bool
    scaled: bool

    def draw(self, axes: Any) -> Any:
        """Draw on matplotlib's axes, and return the artist that has a colour scale, or None."""
        options = {"zorder": 1, **self.options}  # later marks lie over earlier ones
        if self.at_edge:
            options["transform"] = axes.get_xaxis_transform()
        artist = getattr(axes, self.method)(*self.arguments, **options)
        return artist if self.scaled else None


def mark(method: str, *arguments: Any, at_edge: bool = False, scaled: bool = False, **options: Any) -> Mark:
    """Return a call of a method of matplotlib's axes, such as "axvline" with 0 and color=INK."""
    return Mark(method, arguments, options, at_edge, scaled)


def text(x: float, y: float, content: str, size: float = 7, colour: str = INK) -> Mark:
    """Return a text around a point."""
    return mark("text", x, y, content, fontsize=size, color=colour, ha="center", va="center", zorder=3)


def box(row: float, column: float, height: float = 1, width: float = 1, line: float = 2) -> Mark:
    """Return a highlighted frame around cells of a table; `row` and `column` are the first of them."""
    top, left = row - 0.5, column - 0.5
    x = [left, left + width, left + width, left, left]
    y = [top, top, top + height, top + height, top]
    return mark("plot", x, y, color=HIGHLIGHT, linewidth=line, solid_joinstyle="miter", clip_on=False)


def picture(pixels: Tensor, *, faint: bool = False) -> Heat:
    """Return an image (height, width[, 3]) from 0 to 1; a `faint` one takes colour over it."""
    return Heat(0.25 + 0.6 * pixels if faint else pixels, colours=GRAY)


@dataclass
class Panel:
    """A pair of axes.

    x_tokens, y_tokens: labels of the cells of a table, shortened, and indices where they do not fit
    x_names, y_names: labels in full, at `x_positions` where they are not 0, 1, 2
    numbers: the axes have numbers; without them and labels they have no ticks
    bar: the panel has a colour bar of its own
    """

    marks: Sequence[Heat | Mark]
    title: str = ""
    left: bool = False  # the title
    title_colour: str = INK
    title_size: float = 8
    xlabel: str = ""
    ylabel: str = ""
    x_tokens: Sequence[str] | None = None
    y_tokens: Sequence[str] | None = None
    x_names: Sequence[str] = ()
    y_names: Sequence[str] = ()
    x_positions: Sequence[float] = ()
    names_size: float = 7
    numbers: bool = False
    whole: Literal["", "x", "both"] = ""  # the axes whose numbers are indices
    log2: bool = False  # the scale of x
    xlim: tuple[float, float] | None = None
    ylim: tuple[float, float] | None = None
    legend: str = ""  # its place, as in `Axes.legend`
    margin: float | None = None  # around the marks, as a share of the panel
    bar: bool = False
    frame: bool = True


@dataclass
class Page:
    """One figure: rows of panels of `size` inches each. bar: the label of one colour bar for all panels."""

    name: str
    title: str
    panels: Sequence[Sequence[Panel | None]]
    size: tuple[float, float]
    bar: str | None = None
    few_colours: bool = False


def grid(panels: Sequence[Panel], columns: int) -> list[Sequence[Panel | None]]:
    """Return panels in rows of at most `columns`."""
    return [panels[start : start + columns] for start in range(0, len(panels), columns)]


def draw(pages: Iterable[Page], folder: Path) -> Iterator[Path]:
    """Draw each page as the iteration reaches it, and yield its path."""
    drawn = Counter[str]()
    for page in pages:
        columns = max(len(row) for row in page.panels)
        with canvas(len(page.panels), columns, page.size, page.title) as (figure, axes):
            scaled = None
            for panel_axes, row in zip(axes, page.panels, strict=True):
                for cell, panel in zip(panel_axes, [*row, *[None] * (columns - len(row))], strict=True):
                    if panel is None:
                        cell.set_axis_off()
                        continue
                    artist = _draw_panel(cell, panel, page.size)
                    if artist is not None and panel.bar:
                        add_colorbar(figure, artist, cell, fraction=0.046, pad=0.02)
                    scaled = artist or scaled
            if page.bar is not None and scaled is not None:
                every_cell = [cell for row in axes for cell in row]
                width, height = figure.get_size_inches()
                aspect = max(30, height / (0.03 * width))  # as high as the panels of a tall page
                add_colorbar(figure, scaled, every_cell, page.bar or None, fraction=0.03, pad=0.01, aspect=aspect)
            if page.few_colours:
                yield _save_few_colours(figure, folder / f"{page.name}.png")
            else:
                yield save(figure, folder, page.name, drawn[page.name])
        drawn[page.name] += 1


def _draw_panel(axes: Any, panel: Panel, size: tuple[float, float]) -> Any:
    """Draw a panel, and return the last of its artists that has a colour scale."""
    if panel.log2:
        axes.set_xscale("log", base=2)
    scaled = None
    for part in panel.marks:
        artist = part.draw(axes)
        is_picture = isinstance(part, Heat) and part.colours == GRAY
        if artist is not None and not is_picture:  # a picture below the weights has no scale to show
            scaled = artist
    loc = "left" if panel.left else "center"
    axes.set_title(panel.title, pad=3, loc=loc, color=panel.title_colour, fontsize=panel.title_size)
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)
    axes.tick_params(labelsize=7, length=2)
    if axes.get_yscale() == "log":
        plain_ticks(axes.yaxis)
    _label_axis(axes, "x", panel.x_tokens, panel, size)
    _label_axis(axes, "y", panel.y_tokens, panel, size)
    if panel.whole:
        axes.locator_params(axis=panel.whole, integer=True)
    if panel.margin is not None:
        axes.margins(panel.margin)
    axes.set_xlim(panel.xlim)
    axes.set_ylim(panel.ylim)
    if panel.legend:
        axes.legend(fontsize=7, frameon=False, loc=panel.legend)
    if not panel.frame:
        axes.set_axis_off()
    return scaled


def _label_axis(axes: Any, which: str, tokens: Sequence[str] | None, panel: Panel, size: tuple[float, float]) -> None:
    axis, names, positions = axes.xaxis, panel.x_names, panel.x_positions
    if which == "y":
        axis, names, positions = axes.yaxis, panel.y_names, ()
    if tokens is not None:
        label_ticks(axes, tokens, size[0] if which == "x" else size[1], which)
    elif names:
        axis.set_ticks(positions or range(len(names)), names, fontsize=panel.names_size)
        axis.set_tick_params(length=0, pad=2)
        axes.minorticks_off()
    elif not panel.numbers:
        axis.set_ticks([])


def _save_few_colours(figure: Any, path: Path) -> Path:
    """Write a figure as a small PNG; never a partial file."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_FEW_DPI, metadata={"Software": None})
    with Image.open(content, formats=("PNG",)) as picture, replacing(path) as temporary:
        picture.convert("RGB").quantize(_FEW_COLOURS).save(temporary, format="PNG", optimize=True)
    return path
