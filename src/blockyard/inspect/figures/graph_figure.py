"""The attention weights of one query, drawn on the graph whose nodes the tokens are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.inspect.attention_weights import LayerAttention, query_weights
from blockyard.inspect.figures._attention_panels import head_pages, page_colorbar, scale_end, sequential_colours
from blockyard.inspect.figures._canvas import HIGHLIGHT, canvas, panel_side, save
from blockyard.inspect.samples import Sample

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
