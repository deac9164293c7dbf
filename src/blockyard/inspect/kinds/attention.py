"""`blockyard inspect attention`: maps, the weights of one query, and entropies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.errors import UserError
from blockyard.inspect.attention_weights import LayerAttention, attention_layers, query_weights
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
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name
from blockyard.ops.maps import smaller
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "heads", "sample", "samples", "prompt", "query")


SIDE = 128  # most rows and columns of a table in the JSON; neighbours are merged beyond


def inspect(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Return the attention of each selected layer and head. Raises UserError where no layer attends."""
    samples = load_samples(loaded, options)
    layers = attention_layers(loaded.model, samples, layers=options.layers, heads=options.heads, query=options.query)
    if not layers:
        raise UserError(f"{loaded.folder.name} has no attention layer; `blockyard inspect mixing` works for any mixer")
    for layer in layers:
        query_weights(layer, options.query)  # refuses a query that does not exist before anything is written
    heads = [(layer, index) for layer in layers for index in range(len(layer.heads))]
    return InspectionResult(
        numbers={
            "samples": [sample.index for sample in samples],
            "layers": [_numbers(layer) for layer in layers],
            **_sound(samples[0]),
        },
        columns=("layer", "head", "entropy, nats", "of maximum", "largest weight", *_more_columns(layers)),
        rows=[_row(layer, index) + _more_cells(layers, layer, index) for layer, index in heads],
        figures=draw_attention(layers, samples[0], options.query, folder),
        summary=f"entropy: mean over the queries of {samples_name(samples)}; maps: {samples[0].name}",
    )


def _sound(sample: Sample) -> dict[str, object]:
    """The times of the tokens of a sound, in seconds, and of the labels that CTC hears; empty for other inputs."""
    sound = sample.sound or sample.source_sound
    if sound is None:
        return {}
    labels = [
        {"label": label.text, "start": float(sound.edges[label.first]), "end": float(sound.edges[label.last + 1])}
        for label in sound.alignment or ()
    ]
    return {"sound": {"rate": sound.rate, "edges": to_json(sound.edges), "alignment": labels}}


def _numbers(layer: LayerAttention) -> dict[str, object]:
    return {
        "path": layer.path,
        "heads": layer.heads,
        "entropy": to_json(layer.entropy),
        "entropy_share": to_json(layer.share),
        **({} if layer.sink is None else {"sink": to_json(layer.sink)}),
        "prefix": layer.prefix,
        "grid": layer.grid,
        "queries": layer.queries,
        "keys": layer.keys,
        **({} if layer.region is None else {"asked": to_json(layer.region), "asked_patches": layer.region_patches}),
        "weights": to_json(smaller(layer.weights, SIDE)),
    }


def _more_columns(layers: list[LayerAttention]) -> tuple[str, ...]:
    """The columns of what some layer has: a sink, a part of the source that is asked for."""
    sinks = any(layer.sink is not None for layer in layers)
    return (*(["on the sink"] if sinks else []), *_region_columns(layers))


def _more_cells(layers: list[LayerAttention], layer: LayerAttention, index: int) -> tuple[str, ...]:
    """The cells of these columns, empty in layers that have none."""
    if all(each.sink is None for each in layers):
        return _region_cells(layers, layer, index)
    of_sink = "" if layer.sink is None else f"{float(layer.sink[index]):.1%}"
    return (of_sink, *_region_cells(layers, layer, index))


def _region_columns(layers: list[LayerAttention]) -> tuple[str, ...]:
    return ("on what is asked", "of the patches") if any(layer.region is not None for layer in layers) else ()


def _region_cells(layers: list[LayerAttention], layer: LayerAttention, index: int) -> tuple[str, ...]:
    """Attention to the part of the source that is asked for, and its share of the patches; empty in other layers."""
    if not _region_columns(layers):
        return ()
    return ("", "") if layer.region is None else (f"{float(layer.region[index]):.1%}", f"{layer.region_patches:.1%}")


def _row(layer: LayerAttention, index: int) -> tuple[str, ...]:
    entropy, share = float(layer.entropy[index]), float(layer.share[index])
    return (
        layer.name,
        str(layer.heads[index]),
        "" if math.isnan(entropy) else f"{entropy:.3f}",
        "" if math.isnan(share) else f"{share:.1%}",
        f"{float(layer.weights[index].max()):.3f}",
    )


# The figures of attention: whole maps, the weights of one query, entropies.


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
    """Return a readable text colour: dark on bright cells, white on dark ones."""
    return "white" if share < 0.55 else INK


def _colour_norm(low: float, end: float, entries: int) -> Any:
    """Return a linear colour norm, or one that resolves small weights where a map has many entries."""
    from matplotlib.colors import Normalize, PowerNorm

    return PowerNorm(0.5, 0.0, end) if low == 0.0 and entries > _MANY else Normalize(low, end)
