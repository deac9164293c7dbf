"""The token-mixing picture: a panel for each layer, and where the middle token reads from on a grid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.inspect.figures._canvas import (
    MARK,
    NOTHING,
    SEQUENTIAL,
    canvas,
    name_ticks,
    pages,
    panel_side,
    save,
    scale,
)
from blockyard.inspect.mixing import LayerMixing
from blockyard.ops.maps import parts

_COLUMNS, _PANELS = 4, 12
_DECADES = 3
_SIDE = 512


def draw(found: list[LayerMixing], words: str, folder: Path) -> Iterator[Path]:
    """mixing.png for all layers, and mixing_grid.png where tokens lie on a grid. words: what was averaged, and how."""
    title = f"|dy_i/dx_j| / sqrt(D): how strongly output i (row) depends on input j (column). {words}"
    for number, part in enumerate(pages(len(found), _PANELS)):
        layers = [found[i] for i in part]
        yield _page(layers, title + "; grey is under 1e-6 of the most", folder / f"mixing{_suffix(number)}.png", _whole)
    on_grid = [layer for layer in found if layer.grid is not None and len(layer.grid) == 2 and not layer.memory]
    for number, part in enumerate(pages(len(on_grid), _PANELS) if on_grid else []):
        layers = [on_grid[i] for i in part]
        middle = "The same for the output of the middle token (framed), on the grid of inputs; grey is under 1e-6"
        yield _page(layers, middle, folder / f"mixing_grid{_suffix(number)}.png", _middle)


def _page(layers: list[LayerMixing], title: str, path: Path, panel_of: Any) -> Path:
    columns = min(_COLUMNS, len(layers))
    rows = -(-len(layers) // columns)
    shown = max(max(layer.norms.shape) for layer in layers) if panel_of is _whole else 8
    side = panel_side(columns, shown)
    with canvas(rows, columns, (side + 0.5, side), title) as (figure, axes):
        panels = [panel for row in axes for panel in row]
        for panel in panels[len(layers) :]:
            panel.set_axis_off()
        for panel, layer in zip(panels, layers, strict=False):
            image = panel_of(panel, layer, side)
            panel.set_title(f"{layer.name}: {layer.mixer}", pad=3)
            scale(figure, image, panel, fraction=0.046, pad=0.02)
        return save(figure, path)


def _whole(panel: Any, layer: LayerMixing, side: float) -> Any:
    table = joined(layer.norms, _SIDE).numpy()
    image = _show(panel, table)
    for axis, names in (("x", layer.columns), ("y", layer.rows)):
        # Of neighbours that are put together there is no name.
        name_ticks(panel, names if len(names) <= _SIDE else [], side, axis)
    return image


def _middle(panel: Any, layer: LayerMixing, _: float) -> Any:
    from matplotlib.patches import Rectangle

    assert layer.grid is not None
    rows, columns = layer.grid
    place = (rows // 2) * columns + columns // 2
    table = layer.norms[layer.prefix + place, layer.prefix :].reshape(layer.grid).numpy()
    image = _show(panel, table)
    corner = (columns // 2 - 0.5, rows // 2 - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=MARK, linewidth=2))
    panel.set_xticks([])
    panel.set_yticks([])
    return image


def _show(panel: Any, table: Any) -> Any:
    """A logarithmic scale where the largest entry would hide the rest, and grey for nothing."""
    import matplotlib
    from matplotlib.colors import LogNorm, Normalize

    top = max(float(table.max()), 1e-30)
    masked = np.ma.masked_less_equal(table, top * 1e-6)
    low = max(float(masked.min()), top * 10**-_DECADES) if masked.count() else top / 10
    wide = masked.count() and float(np.ma.median(masked)) < top / 8
    norm = LogNorm(low, top) if wide and low < top else Normalize(0, top)
    colours = matplotlib.colormaps[SEQUENTIAL].with_extremes(bad=NOTHING)
    return panel.imshow(masked, cmap=colours, norm=norm, interpolation="nearest")


def joined(norms: Any, side: int) -> Any:
    """Neighbours put together where there are more than `side`: the norm of the joined block of the Jacobian."""
    if max(norms.shape) <= side:
        return norms
    rows, columns = parts(norms.shape[0], side, norms), parts(norms.shape[1], side, norms)
    return (rows @ norms.square() @ columns.T).sqrt()


def _suffix(number: int) -> str:
    return f"_{number + 1}" if number else ""
