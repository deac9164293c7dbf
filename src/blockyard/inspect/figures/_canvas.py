"""What all pictures share: no display, dark text on white, colours that everybody can tell apart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEQUENTIAL = "viridis"  # even in lightness, so that it survives print and colour blindness
DIVERGING = "PuOr"  # orange and purple, told apart by everybody; white is zero
NOTHING = "#e4e4e4"  # exactly nothing
MARK = "#d81b60"
INK = "#1a1a1a"
_DPI = 130
_WIDTH = 15.0  # inches, of the widest picture
_STYLE: dict[str, Any] = {
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
    """A figure of rows x columns panels of `panel` inches; what is drawn in this block has the style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        width = max(columns * panel[0] + 1.0, 5.0)
        figure = Figure(figsize=(width, rows * panel[1] + 0.9), layout="constrained")
        figure.suptitle(wrapped(title, int(width * 13)), fontsize=9, x=0.01, ha="left")
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, [list(row) for row in axes]


def save(figure: Figure, path: Path) -> Path:
    """The picture as a PNG, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": None})
    return path


def wrapped(text: str, width: int) -> str:
    """Lines of at most so many letters; lines that are there stay."""
    import textwrap

    return "\n".join(textwrap.fill(line, max(20, width)) for line in text.splitlines())


def panel_side(columns: int, count: int) -> float:
    """Inches of a square panel: as large as the page allows and `count` labels need."""
    return max(1.5, min(_WIDTH / columns, 1.2 + 0.11 * count, 8.0))


def name_ticks(axes: Axes, names: Sequence[str], side: float, which: str) -> None:
    """The tokens' names at the "x" or "y" axis where they fit, else their numbers."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    count = len(names)
    if count * 0.085 <= side:
        turned = 90 if which == "x" and max(map(len, names), default=0) > 2 else 0
        size = max(4.5, min(8.0, 60 * side / max(1, count)))
        axis.set_ticks(range(count), [drawable(name) for name in names], fontsize=size, rotation=turned)
        axis.set_tick_params(length=0, pad=1)
        return
    step = next((s for s in (8, 16, 32, 64, 128, 256, 512) if count <= 10 * s), 1024)
    axis.set_ticks(range(0, count, step))
    axis.set_tick_params(labelsize=6, length=2)


def scale(figure: Figure, image: Any, axes: Any, words: str | None = None, **where: float) -> None:
    """The colour scale beside `axes`, in plain numbers."""
    beyond = "max" if image.get_array().max() > image.norm.vmax else "neither"
    bar = figure.colorbar(image, ax=axes, label=words, format=lambda value, _: f"{value:g}", extend=beyond, **where)
    bar.ax.tick_params(labelsize=6)
    bar.ax.minorticks_off()


def drawable(name: str) -> str:
    """A token's name in letters that the font has, and not too long."""
    name = name if len(name) <= 12 else name[:11] + "…"
    known = _letters()
    return "".join(letter if ord(letter) in known else f"\\u{ord(letter):x}" for letter in name)


def _letters() -> frozenset[int]:
    global _KNOWN
    if _KNOWN is None:
        from matplotlib import font_manager
        from matplotlib.ft2font import FT2Font

        _KNOWN = frozenset(FT2Font(os.fspath(font_manager.findfont("DejaVu Sans"))).get_charmap())
    return _KNOWN


_KNOWN: frozenset[int] | None = None


def pages(count: int, most: int) -> list[range]:
    """0 to `count`, in as few parts as can be of `most` at most, as even as can be."""
    parts = max(1, -(-count // most))
    edges = [part * count // parts for part in range(parts + 1)]
    return [range(low, high) for low, high in pairwise(edges)]
