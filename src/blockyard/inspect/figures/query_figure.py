"""The attention weights of one query over an image, tokens or a graph, and the weights of each word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.inspect._canvas import (
    HIGHLIGHT,
    INK,
    SEQUENTIAL,
    ZERO_COLOUR,
    panel_side,
    printable,
    split_pages,
)
from blockyard.inspect.attention_weights import LayerAttention, query_weights
from blockyard.inspect.figures._attention_panels import prefix_share, query_rows, scale_end
from blockyard.inspect.panels import OVERLAY, Heat, Mark, Page, Panel, box, mark, picture, text
from blockyard.inspect.samples import Sample

_TOKENS = 96  # most tokens of a strip
_STRIPS = 36  # most strips of a page
_WORDS = 14  # panels of a row
_LAYERS = 6  # rows of a page
_LABELLED = 40  # most nodes that are numbered


def attends_image(layer: LayerAttention, sample: Sample) -> bool:
    """Return whether the keys are the patches of the sample's image."""
    if sample.image is None or layer.cross or layer.grid is None or len(layer.grid) != 2:
        return False
    return layer.grid[0] * layer.grid[1] == len(layer.keys) - layer.prefix


def pages_on_image(layers: list[LayerAttention], sample: Sample, query: str | int | None) -> Iterator[Page]:
    """Yield the weights of one query over the image, a row of panels for each layer."""
    assert sample.image is not None
    pixels = sample.image
    _, name = query_weights(layers[0], query)

    def over_image(layer: LayerAttention, weights: Tensor, head: int, end: float) -> Panel:
        assert layer.grid is not None
        marks = over_picture(pixels, weights[layer.prefix :].reshape(layer.grid), end)
        return Panel(marks, f"head {layer.heads[head]}{prefix_share(layer, weights)}")

    for rows, heads in query_rows(layers, query, over_image):
        cells = [[_framed_image(pixels, layer, name), *panels] for layer, panels in rows]
        side = panel_side(heads + 1, 16)
        title = f"Attention of {name} on {sample.name}"
        yield Page("attention_picture", title, cells, (side, side + 0.15), bar="attention weight of a patch")


def _framed_image(pixels: Tensor, layer: LayerAttention, name: str) -> Panel:
    """Return the image, with a frame around the query's patch."""
    panel = Panel([picture(pixels)], layer.name)
    if name.startswith("token") and layer.grid is not None:
        height, width = (side / cells for side, cells in zip(pixels.shape, layer.grid, strict=False))
        row, column = divmod(int(name.split()[1]), layer.grid[1])
        panel.marks = [*panel.marks, box(row * height, column * width, height, width)]
    return panel


def over_picture(pixels: Tensor, weights: Tensor, end: float) -> list[Heat]:
    """Return an image, and over it the weights of its patches in their grid."""
    height, width = pixels.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    return [picture(pixels, faint=True), Heat(weights, end, colours=OVERLAY, extent=extent)]


def strip_pages(layers: list[LayerAttention], sample: Sample, query: str | int | None) -> Iterator[Page]:
    """Yield the weights of one query over the tokens, a strip for each layer and head; the layers have equal keys."""
    heads = [(layer, head) for layer in layers for head in range(len(layer.heads))]
    _, name = query_weights(layers[0], query)
    keys = layers[0].keys
    for strips in split_pages(heads, _STRIPS):
        tables = torch.stack([query_weights(layer, query)[0][head] for layer, head in strips])
        start = _densest_window(tables.sum(0).abs(), _TOKENS)
        stop = min(start + _TOKENS, len(keys))
        shown = tables[:, start:stop]
        title = f"Attention of {name} on {sample.name}"
        if stop - start < len(keys):
            outside = 1 - float(shown.sum() / tables.sum())
            title += f"; tokens {start} to {stop - 1} of {len(keys)}, {outside:.0%} of the weight lies outside"
        heat = Heat(without_zeros(shown), scale_end([tables]), missing=ZERO_COLOUR, stretched=True)
        names = [f"{layer.name} head {layer.heads[head]}" for layer, head in strips]
        panel = Panel([heat], x_tokens=keys[start:stop], y_names=names)
        size = ((stop - start) * 0.15 + 1.6, 0.2 * len(strips) + 0.7)
        yield Page("attention_tokens", title, [[panel]], size, bar="attention weight")


def without_zeros(table: Tensor) -> Tensor:
    """Return a table with NaN for zero."""
    return table.masked_fill(table == 0, torch.nan)


def _densest_window(mass: Tensor, width: int) -> int:
    """Return the first index of the `width` neighbours with the largest sum."""
    if len(mass) <= width:
        return 0
    return int(mass.unfold(0, width, 1).sum(1).argmax())


def attends_source(layer: LayerAttention, sample: Sample) -> bool:
    """Return whether keys of the layer are the patches of the sample's source."""
    return sample.source_image is not None and layer.source is not None


def word_pages(layers: list[LayerAttention], sample: Sample) -> Iterator[Page]:
    """Yield the attention of each word, and of the class token, over the source: the mean over the shown heads."""
    assert sample.source_image is not None
    pixels = sample.source_image
    title = f"Attention of each token over the source of {sample.name}, mean of the heads"
    for page_layers in split_pages(layers, _LAYERS):
        tables = []  # each (words, M), the mean of the heads
        for layer in page_layers:
            assert layer.source is not None
            start, count = layer.source
            tables.append(layer.weights.mean(0)[_word_queries(layer), start : start + count])
        end = scale_end(tables)
        for page_words in split_pages(range(max(len(table) for table in tables)), _WORDS):
            rows = []
            for layer, table in zip(page_layers, tables, strict=True):
                row: list[Panel | None] = [Panel([picture(pixels)], layer.name)]
                names = [layer.queries[index] for index in _word_queries(layer)]
                for index in page_words:
                    if index < len(names):
                        marks = over_picture(pixels, table[index].reshape(layer.source_grid), end)
                        row.append(Panel(marks, printable(names[index])))
                rows.append(row)
            side = panel_side(len(page_words) + 1, 12)
            yield Page("attention_words", title, rows, (side, side + 0.15), bar="attention weight of a patch")


def _word_queries(layer: LayerAttention) -> list[int]:
    """Return the queries that are shown: the class token, and the tokens of the sequence itself."""
    first = [0] if layer.queries and layer.queries[0] == "class" else []
    return [*first, *range(layer.query_prefix, len(layer.queries))]


def attends_graph(layer: LayerAttention, sample: Sample) -> bool:
    """Return whether the keys are the nodes of the sample's graph."""
    return sample.edges is not None and not layer.cross and len(layer.keys) - layer.prefix == sample.nodes


def pages_on_graph(layers: list[LayerAttention], sample: Sample, query: str | int | None) -> Iterator[Page]:
    """Yield the weights of one query as colours of nodes, a row of panels for each layer."""
    assert sample.edges is not None
    edges = sample.edges
    layout = _layout(sample.nodes, edges)
    _, name = query_weights(layers[0], query)
    ends = np.array([[*layout[[i, j]], [np.nan, np.nan]] for i, j in edges]).reshape(-1, 2)  # NaN between the edges
    edge_lines = mark("plot", *ends.T, color="#808080", linewidth=0.8)

    def on_nodes(layer: LayerAttention, weights: Tensor, head: int, end: float) -> Panel:
        marks = [edge_lines, *_nodes(layout, weights[layer.prefix :], end)]
        if name.startswith("token"):
            x, y = layout[int(name.split()[1])]
            ring: dict[str, Any] = {"facecolors": "none", "edgecolors": HIGHLIGHT, "linewidths": 1.5}
            marks.append(mark("scatter", x, y, s=220, **ring))
        title = f"{layer.name}, head {layer.heads[head]}{prefix_share(layer, weights)}"
        return Panel(marks, title, margin=0.12)

    for rows, heads in query_rows(layers, query, on_nodes):
        side = panel_side(heads, 16)
        title = f"Attention of {name} on {sample.name}"
        cells = [panels for _, panels in rows]
        yield Page("attention_graph", title, cells, (side, side + 0.15), bar="attention weight of a node")


def _layout(nodes: int, edges: list[tuple[int, int]]) -> np.ndarray:
    """Return a position for each node (N, 2), the same at every call: edges are springs, and nodes repel each other."""
    import networkx

    graph = networkx.empty_graph(nodes)
    graph.add_edges_from(edges)
    layout = networkx.spring_layout(graph, seed=0, iterations=200)
    return np.array([layout[node] for node in range(nodes)])


def _nodes(layout: np.ndarray, weights: Tensor, end: float) -> list[Mark]:
    size = max(25.0, min(160.0, 3000.0 / len(layout)))
    edge: dict[str, Any] = {"edgecolors": "#404040", "linewidths": 0.5}
    scale: dict[str, Any] = {"c": weights.numpy(), "cmap": SEQUENTIAL, "vmin": 0, "vmax": end}
    marks = [mark("scatter", *layout.T, s=size, scaled=True, **scale, **edge)]
    if len(layout) <= _LABELLED:
        for node, (x, y) in enumerate(layout):
            colour = "white" if weights[node] < 0.55 * end else INK
            marks.append(text(x, y, str(node), 5, colour))
    return marks
