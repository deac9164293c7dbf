"""The figures of attention: whole maps, the weights of one query, entropies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.inspect.attention_weights import LayerAttention
from blockyard.inspect.figures._attention_panels import head_pages, page_colorbar, scale_end, sequential_colours
from blockyard.inspect.figures._canvas import DIVERGING, INK, canvas, label_ticks, panel_side, save
from blockyard.inspect.figures.query_figure import (
    attends_graph,
    attends_image,
    attends_source,
    draw_on_graph,
    draw_on_image,
    draw_strips,
    draw_words,
)
from blockyard.inspect.figures.sound_figure import attends_sound, draw_on_sound
from blockyard.inspect.samples import Sample
from blockyard.ops.maps import smaller

_SIDE = 512  # most rows and columns of a map that is drawn
_MANY = 1000  # entries, from which on most weights are small


def draw_attention(
    layers: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path
) -> Iterator[Path]:
    """Draw every figure of these layers. Raises ValueError for a query that the sequence does not have."""
    yield from _draw_maps(layers, sample, folder)
    on_image = [layer for layer in layers if attends_image(layer, sample)]
    if on_image:
        yield from draw_on_image(on_image, sample, query, folder)
    on_source = [layer for layer in layers if attends_source(layer, sample)]
    if on_source:
        yield from draw_words(on_source, sample, folder)
    on_graph = [layer for layer in layers if attends_graph(layer, sample)]
    if on_graph:
        yield from draw_on_graph(on_graph, sample, query, folder)
    on_sound = [layer for layer in layers if attends_sound(layer, sample)]
    if on_sound:
        yield from draw_on_sound(on_sound, sample, query, folder)
    groups: dict[Any, list[LayerAttention]] = {}  # the layers of one strip figure have the same keys and queries
    for layer in layers:
        if not any(attends(layer, sample) for attends in (attends_image, attends_graph, attends_sound)):
            groups.setdefault((*layer.keys, None, *layer.queries), []).append(layer)
    pages = count()
    for group in groups.values():
        yield from draw_strips(group, sample, query, folder, pages)
    yield _draw_entropy(layers, folder)


def _draw_maps(layers: list[LayerAttention], sample: Sample, folder: Path) -> Iterator[Path]:
    for page, page_layers, heads in head_pages(layers):
        longest = max(max(len(layer.queries), len(layer.keys)) for layer in page_layers)
        side = panel_side(len(heads), longest)
        end = scale_end([layer.weights for layer in page_layers])
        title = f"Attention weights on {sample.name}; rows are queries, columns are keys; grey is exactly zero"
        with canvas(len(page_layers), len(heads), (side, side), title) as (figure, axes):
            image = None
            for row, layer, below in zip(axes, page_layers, [*page_layers[1:], None], strict=True):
                label_keys = below is None or below.keys != layer.keys or len(below.heads) < len(layer.heads)
                for head, panel in zip(heads, row, strict=True):
                    if head >= len(layer.heads):
                        panel.set_axis_off()
                        continue
                    image = _draw_map(panel, layer, head, end)
                    if max(layer.weights.shape[1:]) <= _SIDE:
                        if label_keys:
                            label_ticks(panel, layer.keys, side, "x")
                        if panel is row[0]:
                            label_ticks(panel, layer.queries, side, "y")
            page_colorbar(figure, image, axes, "attention weight")
            yield save(figure, folder, "attention_maps", page)


def _draw_map(panel: Any, layer: LayerAttention, head: int, end: float) -> Any:
    weights = smaller(layer.weights[head], _SIDE)
    signed = float(weights.min()) < -1e-6  # a mixer whose weights do not sum to one
    table = weights.numpy() if signed else np.ma.masked_equal(weights.numpy(), 0.0)
    colours, low = (DIVERGING, -end) if signed else (sequential_colours(), 0.0)
    image = panel.imshow(table, cmap=colours, norm=_colour_norm(low, end, table.size), interpolation="nearest")
    panel.set_title(f"{layer.name}, head {layer.heads[head]}", pad=2)
    panel.set_xticks([])
    panel.set_yticks([])
    return image


def _draw_entropy(layers: list[LayerAttention], folder: Path) -> Path:
    columns = max(max(layer.heads) for layer in layers) + 1
    table = np.full((len(layers), columns), math.nan)
    for row, layer in enumerate(layers):
        table[row, layer.heads] = layer.share.numpy()
    title = "Entropy of attention: in nats, and as a share of the maximum, the logarithm of the number of visible keys"
    with canvas(1, 1, (max(3.5, 0.75 * columns + 1.2), 0.32 * len(layers) + 0.5), title) as (figure, axes):
        panel = axes[0][0]
        image = panel.imshow(np.ma.masked_invalid(table), cmap=sequential_colours(), vmin=0, vmax=1, aspect="auto")
        for row, layer in enumerate(layers):
            for head, nats, share in zip(layer.heads, layer.entropy.tolist(), layer.share.tolist(), strict=True):
                text = "none" if math.isnan(nats) else f"{nats:.2f}" + ("" if math.isnan(share) else f"  {share:.0%}")
                panel.text(head, row, text, ha="center", va="center", fontsize=7, color=_text_colour(share))
        panel.set_yticks(range(len(layers)), [layer.name for layer in layers])
        panel.set_xticks(range(columns), [f"head {head}" for head in range(columns)])
        panel.tick_params(length=0)
        page_colorbar(figure, image, axes, "share of the maximum")
        return save(figure, folder, "attention_entropy")


def _text_colour(share: float) -> str:
    """Returns a readable text colour: dark on bright cells, white on dark ones."""
    return "white" if share < 0.55 else INK


def _colour_norm(low: float, end: float, entries: int) -> Any:
    """Returns a linear colour norm, or one that resolves small weights where a map has many entries."""
    from matplotlib.colors import Normalize, PowerNorm

    return PowerNorm(0.5, 0.0, end) if low == 0.0 and entries > _MANY else Normalize(low, end)
