"""The attention of each word over the picture that it is about, a row of pictures for each layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from blockyard.inspect.attention_weights import LayerAttention
from blockyard.inspect.figures._attention_panels import page_colorbar, scale_end
from blockyard.inspect.figures._canvas import canvas, panel_side, printable, save, split_pages
from blockyard.inspect.figures.query_figure import draw_weights
from blockyard.inspect.samples import Sample

_WORDS = 14  # panels of a row
_LAYERS = 6  # rows of a page


def attends_source(layer: LayerAttention, sample: Sample) -> bool:
    """Whether keys of the layer are the patches of the sample's source."""
    return sample.source_image is not None and layer.source is not None


def draw_words(layers: list[LayerAttention], sample: Sample, folder: Path) -> Iterator[Path]:
    """Draw what each word, or the class token, attends to: the mean over the heads that are shown."""
    assert sample.source_image is not None
    pixels = sample.source_image.numpy()
    tables = [_on_source(layer) for layer in layers]  # each (words, M)
    names = [[layer.queries[i] for i in _shown(layer)] for layer in layers]
    page = 0
    for rows in split_pages(len(layers), _LAYERS):
        for columns in split_pages(max(len(names[row]) for row in rows), _WORDS):
            end = scale_end([tables[row] for row in rows])
            side = panel_side(len(columns) + 1, 12)
            title = f"Attention of each token over the source of {sample.name}, mean of the heads"
            with canvas(len(rows), len(columns) + 1, (side, side + 0.15), title) as (figure, axes):
                drawn = None
                for panels, row in zip(axes, rows, strict=True):
                    _draw_picture(panels[0], pixels, layers[row].name)
                    for panel, column in zip(panels[1:], columns, strict=True):
                        if column >= len(names[row]):
                            panel.set_axis_off()
                            continue
                        drawn = draw_weights(panel, pixels, tables[row][column].reshape(layers[row].source_grid), end)
                        panel.set_title(printable(names[row][column]), pad=2)
                page_colorbar(figure, drawn, axes, "attention weight of a patch")
                yield save(figure, folder, "attention_words", page)
            page += 1


def _shown(layer: LayerAttention) -> list[int]:
    """The queries that are shown: the class token, and the tokens of the sequence itself."""
    first = [0] if layer.queries and layer.queries[0] == "class" else []
    return [*first, *range(layer.query_prefix, len(layer.queries))]


def _on_source(layer: LayerAttention) -> Tensor:
    """The weights of the shown queries on the source's patches, mean of the heads: (words, M)."""
    assert layer.source is not None
    start, count = layer.source
    return layer.weights.mean(0)[_shown(layer), start : start + count]


def _draw_picture(panel: Any, pixels: Any, name: str) -> None:
    panel.imshow(pixels, cmap="gray", vmin=0, vmax=1)
    panel.set_title(name, pad=2)
    panel.set_xticks([])
    panel.set_yticks([])
