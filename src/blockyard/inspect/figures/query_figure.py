"""The attention weights of one query over an image, over tokens as strips or on a graph, or those of each word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.inspect.attention_weights import LayerAttention, query_weights
from blockyard.inspect.figures._attention_panels import head_pages, page_colorbar, scale_end, sequential_colours
from blockyard.inspect.figures._canvas import HIGHLIGHT, canvas, panel_side, printable, save, split_pages
from blockyard.inspect.samples import Sample

_TOKENS = 96  # most tokens of a strip
_STRIPS = 36  # most strips of a page


def attends_image(layer: LayerAttention, sample: Sample) -> bool:
    """Whether the keys are the patches of the sample's image."""
    if sample.image is None or layer.cross or layer.grid is None or len(layer.grid) != 2:
        return False
    return layer.grid[0] * layer.grid[1] == len(layer.keys) - layer.prefix


def draw_on_image(
    layers: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path
) -> Iterator[Path]:
    """Draw the weights of one query over the image, a row of panels for each layer."""
    assert sample.image is not None
    pixels = sample.image.numpy()
    _, name = query_weights(layers[0], query)
    for page, page_layers, heads in head_pages(layers):
        tables = [query_weights(layer, query)[0] for layer in page_layers]
        end = scale_end([table[:, layer.prefix :] for table, layer in zip(tables, page_layers, strict=True)])
        side = panel_side(len(heads) + 1, 16)
        title = f"Attention of {name} on {sample.name}"
        with canvas(len(page_layers), len(heads) + 1, (side, side + 0.15), title) as (figure, axes):
            image = None
            for row, layer, table in zip(axes, page_layers, tables, strict=True):
                _draw_image(row[0], pixels, layer, name)
                for head, panel in zip(heads, row[1:], strict=True):
                    if head >= len(layer.heads):
                        panel.set_axis_off()
                        continue
                    image = _draw_overlay(panel, pixels, layer, table[head], head, end)
            page_colorbar(figure, image, axes, "attention weight of a patch")
            yield save(figure, folder, "attention_picture", page)


def _draw_image(panel: Any, pixels: Any, layer: LayerAttention, name: str) -> None:
    """Draw the image, with a frame around the query's patch."""
    from matplotlib.patches import Rectangle

    panel.imshow(pixels, cmap="gray", vmin=0, vmax=1)
    panel.set_title(layer.name, pad=2)
    panel.set_xticks([])
    panel.set_yticks([])
    if not name.startswith("token") or layer.grid is None:
        return
    height, width = (side / cells for side, cells in zip(pixels.shape, layer.grid, strict=False))
    row, column = divmod(int(name.split()[1]), layer.grid[1])
    corner = (column * width - 0.5, row * height - 0.5)
    panel.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=HIGHLIGHT, linewidth=2))


def _draw_overlay(panel: Any, pixels: Any, layer: LayerAttention, weights: Any, head: int, end: float) -> Any:
    assert layer.grid is not None
    image = draw_weights(panel, pixels, weights[layer.prefix :].reshape(layer.grid), end)
    on_prefix = float(weights[: layer.prefix].sum())
    panel.set_title(f"head {layer.heads[head]}" + (f", {on_prefix:.0%} on prefix" if layer.prefix else ""), pad=2)
    return image


def draw_weights(panel: Any, pixels: Any, weights: Any, end: float) -> Any:
    """Draw the weights of patches, in their grid, over an image."""
    height, width = pixels.shape[:2]
    panel.imshow(0.25 + 0.6 * pixels, cmap="gray", vmin=0, vmax=1)  # neither black nor white, so that both take colour
    image = panel.imshow(
        weights.numpy(),
        cmap=transparent_to_orange(),
        vmin=0,
        vmax=end,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        interpolation="nearest",
    )
    panel.set_xticks([])
    panel.set_yticks([])
    return image


def transparent_to_orange() -> Any:
    """Return a colour map that covers what is below it more, the larger a weight is."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("overlay", [(1.0, 0.45, 0.0, 0.0), (1.0, 0.45, 0.0, 0.9)])


def draw_strips(
    layers: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path, page_numbers: Iterator[int]
) -> Iterator[Path]:
    """Draw the weights of one query over the tokens, a strip for each layer and head; the layers have equal keys."""
    heads = [(layer, head) for layer in layers for head in range(len(layer.heads))]
    _, name = query_weights(layers[0], query)
    keys = layers[0].keys
    for part in split_pages(len(heads), _STRIPS):
        strips = [heads[i] for i in part]
        tables = torch.stack([query_weights(layer, query)[0][head] for layer, head in strips])
        start = _densest_window(tables.sum(0).abs(), _TOKENS)
        window = range(start, min(start + _TOKENS, len(keys)))
        title = f"Attention of {name} on {sample.name}"
        if len(window) < len(keys):
            outside = 1 - float(tables[:, start : window.stop].sum() / tables.sum())
            title += f"; tokens {start} to {window.stop - 1} of {len(keys)}, {outside:.0%} of the weight lies outside"
        with canvas(1, 1, (len(window) * 0.15 + 1.6, 0.2 * len(part) + 0.7), title) as (figure, axes):
            panel = axes[0][0]
            table = np.ma.masked_equal(tables[:, start : window.stop].numpy(), 0.0)
            image = panel.imshow(table, cmap=sequential_colours(), vmin=0, vmax=scale_end([tables]), aspect="auto")
            names = [f"{layer.name} head {layer.heads[head]}" for layer, head in strips]
            panel.set_yticks(range(len(part)), names, fontsize=7)
            labels = [printable(keys[i]) for i in window]
            rotation = 90 if max(map(len, labels), default=0) > 2 else 0
            panel.set_xticks(range(len(window)), labels, fontsize=7, rotation=rotation)
            panel.tick_params(length=0, pad=2)
            page_colorbar(figure, image, axes, "attention weight")
            yield save(figure, folder, "attention_tokens", next(page_numbers))


def _densest_window(mass: torch.Tensor, width: int) -> int:
    """Return the first index of the `width` neighbours with the largest sum."""
    if len(mass) <= width:
        return 0
    return int(mass.unfold(0, width, 1).sum(1).argmax())


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


_LABELLED = 40  # most nodes that are numbered


def attends_graph(layer: LayerAttention, sample: Sample) -> bool:
    """Whether the keys are the nodes of the sample's graph."""
    return sample.edges is not None and not layer.cross and len(layer.keys) - layer.prefix == sample.nodes


def draw_on_graph(
    layers: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path
) -> Iterator[Path]:
    """Draw the weights of one query as colours of nodes, a row of panels for each layer."""
    assert sample.edges is not None
    layout = _layout(sample.nodes, sample.edges)
    _, name = query_weights(layers[0], query)
    for page, page_layers, heads in head_pages(layers):
        tables = [query_weights(layer, query)[0] for layer in page_layers]
        end = scale_end([table[:, layer.prefix :] for table, layer in zip(tables, page_layers, strict=True)])
        side = panel_side(len(heads), 16)
        title = f"Attention of {name} on {sample.name}"
        with canvas(len(page_layers), len(heads), (side, side + 0.15), title) as (figure, axes):
            drawn = None
            for row, layer, table in zip(axes, page_layers, tables, strict=True):
                for head, panel in zip(heads, row, strict=True):
                    if head >= len(layer.heads):
                        panel.set_axis_off()
                        continue
                    drawn = _draw_nodes(panel, layout, sample.edges, table[head, layer.prefix :].numpy(), end)
                    on_prefix = float(table[head, : layer.prefix].sum())
                    share = f", {on_prefix:.0%} on prefix" if layer.prefix else ""
                    panel.set_title(f"{layer.name}, head {layer.heads[head]}{share}", pad=2)
                    if name.startswith("token"):
                        _mark(panel, layout[int(name.split()[1])])
            page_colorbar(figure, drawn, axes, "attention weight of a node")
            yield save(figure, folder, "attention_graph", page)


def _layout(nodes: int, edges: list[tuple[int, int]]) -> np.ndarray:
    """A place for each node (N, 2), the same at every call: springs for edges, nodes push each other away."""
    import networkx

    graph = networkx.empty_graph(nodes)
    graph.add_edges_from(edges)
    layout = networkx.spring_layout(graph, seed=0, iterations=200)
    return np.array([layout[node] for node in range(nodes)])


def _draw_nodes(panel: Any, layout: np.ndarray, edges: list[tuple[int, int]], weights: np.ndarray, end: float) -> Any:
    from matplotlib.collections import LineCollection

    panel.add_collection(LineCollection([layout[[i, j]] for i, j in edges], colors="#808080", linewidths=0.8, zorder=1))
    size = max(25.0, min(160.0, 3000.0 / len(layout)))
    points = panel.scatter(
        *layout.T, c=weights, s=size, cmap=sequential_colours(), vmin=0, vmax=end, edgecolors="#404040", linewidths=0.5
    )
    if len(layout) <= _LABELLED:
        for node, (x, y) in enumerate(layout):
            dark = weights[node] < 0.55 * end
            panel.text(x, y, str(node), ha="center", va="center", fontsize=5, color="white" if dark else "#1a1a1a")
    panel.margins(0.12)
    panel.set_xticks([])
    panel.set_yticks([])
    return points


def _mark(panel: Any, place: np.ndarray) -> None:
    """A ring around the query's node."""
    panel.scatter(*place[:, None], s=220, facecolors="none", edgecolors=HIGHLIGHT, linewidths=1.5)
