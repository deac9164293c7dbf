"""The style of all figures: no display, dark text on white, colours that colour-blind readers can tell apart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from blockyard.atomic_files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

Item = TypeVar("Item")

SEQUENTIAL = "viridis"  # uniform in lightness, so that it survives print and colour blindness
DIVERGING = "PuOr"  # orange and purple, safe for colour blindness; white is zero
ZERO_COLOUR = "#e4e4e4"  # exactly zero
HIGHLIGHT = "#d81b60"
INK = "#1a1a1a"
_DPI = 130
_WIDTH = 15.0  # inches, of the widest figure
_STYLE: dict[RcKeyType, Any] = {
    "text.parse_math": False,  # a $ in a token is a $
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.edgecolor": "#808080",
    "axes.linewidth": 0.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
}


@contextmanager
def canvas(
    rows: int, columns: int, panel: tuple[float, float], title: str
) -> Iterator[tuple[Figure, list[list[Axes]]]]:
    """Make a figure of rows x columns panels of `panel` inches; the style applies inside this context."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        width = max(columns * panel[0] + 1.0, 5.0)
        figure = Figure(figsize=(width, rows * panel[1] + 0.9), layout="constrained")
        figure.suptitle(wrap(title, int(width * 13)), fontsize=9, x=0.01, ha="left")
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, [list(row) for row in axes]


def plain_ticks(axis: Axis) -> None:
    """Write the ticks of a logarithmic axis as numbers: math mode is off. Minor ones only within one decade."""
    from matplotlib.ticker import FuncFormatter

    def minor(value: float, _: int | None) -> str:
        lowest, highest = axis.get_view_interval()
        return f"{value:.3g}" if highest < 10 * lowest else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(minor))


def save(figure: Figure, folder: Path, name: str, page: int = 0) -> Path:
    """Write the figure as NAME.png, pages after the first as NAME_2.png and so on; never a partial file."""
    path = folder / (f"{name}_{page + 1}.png" if page else f"{name}.png")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": None})
    return path


def wrap(text: str, width: int) -> str:
    """Return text in lines of at most `width` characters; existing line breaks stay."""
    import textwrap

    return "\n".join(textwrap.fill(line, max(20, width)) for line in text.splitlines())


def panel_side(columns: int, count: int) -> float:
    """Return the inches of a square panel: within the page's width, and large enough for `count` labels."""
    return max(1.5, min(_WIDTH / columns, 1.2 + 0.11 * count, 8.0))


def label_ticks(axes: Axes, labels: Sequence[str], side: float, which: str) -> None:
    """Label the "x" or "y" axis with the tokens where they fit, else with indices."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    count = len(labels)
    if count * 0.085 <= side:
        rotation = 90 if which == "x" and max(map(len, labels), default=0) > 2 else 0
        size = max(4.5, min(8.0, 60 * side / max(1, count)))
        axis.set_ticks(range(count), [printable(label) for label in labels], fontsize=size, rotation=rotation)
        axis.set_tick_params(length=0, pad=1)
        return
    step = next((s for s in (8, 16, 32, 64, 128, 256, 512) if count <= 10 * s), 1024)
    axis.set_ticks(range(0, count, step))
    axis.set_tick_params(labelsize=6, length=2)


class BarLayout(TypedDict, total=False):
    """The size and distance of a colour bar, as in `Figure.colorbar`."""

    fraction: float
    pad: float
    aspect: float


def add_colorbar(figure: Figure, image: Any, axes: Any, label: str | None = None, **layout: Unpack[BarLayout]) -> None:
    """Add a colour bar next to `axes`, with plain numbers."""
    extend = "max" if image.get_array().max() > image.norm.vmax else "neither"
    bar = figure.colorbar(image, ax=axes, label=label, format=lambda value, _: f"{value:g}", extend=extend, **layout)
    bar.ax.tick_params(labelsize=6)
    bar.ax.minorticks_off()


def printable(label: str) -> str:
    """Return a label of at most 12 characters; characters that the font lacks are escaped."""
    if len(label) > 12:
        label = label[:11] + "…"
    glyphs = _font_glyphs()
    return "".join(letter if ord(letter) in glyphs else f"\\u{ord(letter):x}" for letter in label)


@cache
def _font_glyphs() -> frozenset[int]:
    """Return the code points of the font of all figures."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(os.fspath(font_manager.findfont("DejaVu Sans"))).get_charmap())


def split_pages(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Return the items in the fewest parts of at most `most`, of nearly equal length; no part without items."""
    parts = -(-len(items) // most)
    edges = [part * len(items) // parts for part in range(parts + 1)] if parts else []
    return [items[low:high] for low, high in pairwise(edges)]
