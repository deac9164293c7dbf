"""Shared by the figures of attention: pages of layers and heads, colour scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from blockyard.inspect.attention_weights import LayerAttention
from blockyard.inspect.figures._canvas import SEQUENTIAL, ZERO_COLOUR, add_colorbar, split_pages

_ROWS, _COLUMNS = 6, 8  # panels of a page
_MANY = 2000  # entries, from which on a quantile ends the colour scale


def head_pages(layers: list[LayerAttention]) -> Iterator[tuple[int, list[LayerAttention], range]]:
    """Yield the number, layers and heads of each page; heads as indices of `LayerAttention.heads`."""
    page = 0
    for part in split_pages(len(layers), _ROWS):
        page_layers = [layers[i] for i in part]
        for heads in split_pages(max(len(layer.heads) for layer in page_layers), _COLUMNS):
            yield page, page_layers, heads
            page += 1


def scale_end(tables: list[Any]) -> float:
    """Return the upper end of a colour scale that a few extreme entries do not stretch."""
    values = torch.cat([table.flatten() for table in tables]).abs()
    return max(float(values.max()) if values.numel() < _MANY else float(np.quantile(values.numpy(), 0.998)), 1e-6)


def sequential_colours() -> Any:
    """Return the sequential colour map, with grey for masked zeros."""
    import matplotlib

    return matplotlib.colormaps[SEQUENTIAL].with_extremes(bad=ZERO_COLOUR)


def page_colorbar(figure: Any, image: Any, axes: Any, label: str) -> None:
    """Add one colour bar for all panels of a page; none where nothing was drawn."""
    if image is not None:
        add_colorbar(figure, image, [panel for row in axes for panel in row], label, fraction=0.03, pad=0.01, aspect=30)
