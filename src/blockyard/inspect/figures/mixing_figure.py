"""The figures of token mixing: a panel for each layer, and where the middle token of a grid reads from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from blockyard.inspect.figures._canvas import (
    HIGHLIGHT,
    SEQUENTIAL,
    ZERO_COLOUR,
    add_colorbar,
    canvas,
    label_ticks,
    panel_side,
    save,
    split_pages,
)
from blockyard.inspect.mixing import LayerMixing
from blockyard.ops.maps import parts

_COLUMNS, _PANELS = 4, 12
_DECADES = 3
_SIDE = 512  # most rows and columns of a table that is drawn
_GRID_LABELS = 8  # the size of a panel without labels, as a number of labels


def draw_mixing(layers: list[LayerMixing], averaged: str, folder: Path) -> Iterator[Path]:
    """Draw mixing.png for all layers, and mixing_grid.png where tokens lie on a grid.

    averaged: the samples that were averaged, and how, for the title
    """
    title = (
        f"|dy_i/dx_j| / sqrt(D): how strongly output i (row) depends on input j (column). {averaged}; "
        "grey is below 1e-6 of the maximum"
    )
    for page, part in enumerate(split_pages(len(layers), _PANELS)):
        page_layers = [layers[i] for i in part]
        labels = max(max(layer.norms.shape) for layer in page_layers)
        yield _draw_page(page_layers, title, labels, _draw_table, folder, "mixing", page)
    on_grid = [layer for layer in layers if layer.grid is not None and len(layer.grid) == 2 and not layer.memory]
    title = "The same for the output of the middle token (framed), on the grid of inputs; grey is below 1e-6"
    for page, part in enumerate(split_pages(len(on_grid), _PANELS) if on_grid else []):
        page_layers = [on_grid[i] for i in part]
        yield _draw_page(page_layers, title, _GRID_LABELS, _draw_middle, folder, "mixing_grid", page)


def _draw_page(
    layers: list[LayerMixing],
    title: str,
    labels: int,
    draw_panel: Callable[[Any, LayerMixing, float], Any],
    folder: Path,
    name: str,
    page: int,
) -> Path:
    columns = min(_COLUMNS, len(layers))
    rows = -(-len(layers) // columns)
    side = panel_side(columns, labels)
    with canvas(rows, columns, (side + 0.5, side), title) as (figure, axes):
        panels = [panel for row in axes for panel in row]
        for panel in panels[len(layers) :]:
            panel.set_axis_off()
        for panel, layer in zip(panels, layers, strict=False):
            image = draw_panel(panel, layer, side)
            panel.set_title(f"{layer.name}: {layer.mixer}", pad=3)
            add_colorbar(figure, image, panel, fraction=0.046, pad=0.02)
        return save(figure, folder, name, page)


def _draw_table(panel: Any, layer: LayerMixing, side: float) -> Any:
    image = _draw_norms(panel, merge_neighbours(layer.norms, _SIDE).numpy())
    for axis, labels in (("x", layer.columns), ("y", layer.rows)):
        label_ticks(panel, labels if len(labels) <= _SIDE else [], side, axis)  # merged neighbours have no label
    return image


def _draw_middle(panel: Any, layer: LayerMixing, _: float) -> Any:
    from matplotlib.patches import Rectangle

    assert layer.grid is not None
    rows, columns = layer.grid
    middle = layer.prefix + (rows // 2) * columns + columns // 2
    image = _draw_norms(panel, layer.norms[middle, layer.prefix :].reshape(layer.grid).numpy())
    corner = (columns // 2 - 0.5, rows // 2 - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=HIGHLIGHT, linewidth=2))
    panel.set_xticks([])
    panel.set_yticks([])
    return image


def _draw_norms(panel: Any, table: Any) -> Any:
    """Draw a table, on a logarithmic scale where the largest entries would hide the rest, and with grey for zero."""
    import matplotlib
    from matplotlib.colors import LogNorm, Normalize

    end = max(float(table.max()), 1e-30)
    masked = np.ma.masked_less_equal(table, end * 1e-6)
    low = max(float(masked.min()), end * 10**-_DECADES) if masked.count() else end / 10
    wide = masked.count() and float(np.ma.median(masked)) < end / 8
    norm = LogNorm(low, end) if wide and low < end else Normalize(0, end)
    colours = matplotlib.colormaps[SEQUENTIAL].with_extremes(bad=ZERO_COLOUR)
    return panel.imshow(masked, cmap=colours, norm=norm, interpolation="nearest")


def merge_neighbours(norms: Tensor, side: int) -> Tensor:
    """Returns norms of at most `side` rows and columns: those of the merged blocks of the Jacobian."""
    if max(norms.shape) <= side:
        return norms
    rows, columns = parts(norms.shape[0], side, norms), parts(norms.shape[1], side, norms)
    return (rows @ norms.square() @ columns.T).sqrt()
