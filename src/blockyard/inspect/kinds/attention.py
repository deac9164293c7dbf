"""`blockyard inspect attention`: maps, the weights of one query, and entropies."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from blockyard.errors import UserError
from blockyard.inspect._canvas import INK, ZERO_COLOUR, panel_side
from blockyard.inspect.attention_weights import LayerAttention, attention_layers, query_weights
from blockyard.inspect.figures._attention_panels import head_pages, scale_end
from blockyard.inspect.figures.query_figure import (
    attends_graph,
    attends_image,
    attends_source,
    pages_on_graph,
    pages_on_image,
    strip_pages,
    without_zeros,
    word_pages,
)
from blockyard.inspect.figures.sound_figure import attends_sound, pages_on_sound
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Heat, Mark, Page, Panel, signed, text
from blockyard.inspect.result import JSON_SIDE, InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name
from blockyard.ops.maps import smaller
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "heads", "sample", "samples", "prompt", "query")

_SIDE = 512  # most rows and columns of a map that is drawn
_MANY = 1000  # entries, from which on most weights are small


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the attention of each selected layer and head. Raises UserError if no layer attends."""
    samples = load_samples(loaded, options)
    layers = attention_layers(loaded.model, samples, layers=options.layers, heads=options.heads, query=options.query)
    if not layers:
        raise UserError(f"{loaded.folder.name} has no attention layer; `blockyard inspect mixing` works for any mixer")
    for layer in layers:
        query_weights(layer, options.query)  # refuses a query that does not exist before anything is written
    return InspectionResult(
        numbers={
            "samples": [sample.index for sample in samples],
            "layers": [_numbers(layer) for layer in layers],
            **_sound(samples[0]),
        },
        rows=[table_row(layer, index) for layer in layers for index in range(len(layer.heads))],
        pages=pages(layers, samples[0], options.query),
        summary=f"entropy: mean over the queries of {samples_name(samples)}; maps: {samples[0].name}",
    )


def _sound(sample: Sample) -> dict[str, object]:
    """Return the times of a sound's tokens, in seconds, and of the labels that CTC hears; empty for other inputs."""
    sound = sample.sound or sample.source_sound
    if sound is None:
        return {}
    labels = []
    for label in sound.alignment or ():
        start = float(sound.edges[label.first])
        end = float(sound.edges[label.last + 1])
        labels.append({"label": label.text, "start": start, "end": end})
    return {"sound": {"rate": sound.rate, "edges": to_json(sound.edges), "alignment": labels}}


def _numbers(layer: LayerAttention) -> dict[str, object]:
    sink = {}
    if layer.sink is not None:
        sink["sink"] = to_json(layer.sink)
    region = {}
    if layer.region is not None:
        region = {"asked": to_json(layer.region), "asked_patches": layer.region_patches}
    return {
        "path": layer.path,
        "heads": layer.heads,
        "entropy": to_json(layer.entropy),
        "entropy_share": to_json(layer.share),
        **sink,
        "prefix": layer.prefix,
        "grid": layer.grid,
        "queries": layer.queries,
        "keys": layer.keys,
        **region,
        "weights": to_json(smaller(layer.weights, JSON_SIDE)),
    }


def table_row(layer: LayerAttention, index: int) -> dict[str, str | None]:
    """Return the cells of one head; None if its layer has no sink, or no part of the source is asked for."""
    entropy = float(layer.entropy[index])
    share = float(layer.share[index])
    cells: dict[str, str | None] = {
        "layer": layer.name,
        "head": str(layer.heads[index]),
        "entropy, nats": "",
        "of maximum": "",
        "largest weight": f"{float(layer.weights[index].max()):.3f}",
        "on the sink": None,
        "on what is asked": None,
        "of the patches": None,
    }
    if not math.isnan(entropy):
        cells["entropy, nats"] = f"{entropy:.3f}"
    if not math.isnan(share):
        cells["of maximum"] = f"{share:.1%}"
    if layer.sink is not None:
        cells["on the sink"] = f"{float(layer.sink[index]):.1%}"
    if layer.region is not None:
        cells["on what is asked"] = f"{float(layer.region[index]):.1%}"
        cells["of the patches"] = f"{layer.region_patches:.1%}"
    return cells


def pages(layers: list[LayerAttention], sample: Sample, query: str | int | None) -> Iterator[Page]:
    """Yield every figure of these layers. Raises ValueError for a query that the sequence does not have."""
    yield from _map_pages(layers, sample)
    on_image = [layer for layer in layers if attends_image(layer, sample)]
    if on_image:
        yield from pages_on_image(on_image, sample, query)
    on_source = [layer for layer in layers if attends_source(layer, sample)]
    if on_source:
        yield from word_pages(on_source, sample)
    on_graph = [layer for layer in layers if attends_graph(layer, sample)]
    if on_graph:
        yield from pages_on_graph(on_graph, sample, query)
    on_sound = [layer for layer in layers if attends_sound(layer, sample)]
    if on_sound:
        yield from pages_on_sound(on_sound, sample, query)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[LayerAttention]] = {}
    for layer in layers:
        if attends_image(layer, sample) or attends_graph(layer, sample) or attends_sound(layer, sample):
            continue
        groups.setdefault((tuple(layer.keys), tuple(layer.queries)), []).append(layer)
    for group in groups.values():  # strips of one figure have the same keys and queries
        yield from strip_pages(group, sample, query)
    yield _entropy_page(layers)


def _map_pages(layers: list[LayerAttention], sample: Sample) -> Iterator[Page]:
    """Yield attention_maps.png: a row for each layer, a column for each head."""
    title = f"Attention weights on {sample.name}; rows are queries, columns are keys; grey is exactly zero"
    for page_layers, heads in head_pages(layers):
        end = scale_end([layer.weights for layer in page_layers])
        rows = []
        for layer, below in zip(page_layers, [*page_layers[1:], None], strict=True):
            row = [_map(layer, head, end) for head in heads if head < len(layer.heads)]
            fits = max(layer.weights.shape[1:]) <= _SIDE
            if fits and row:
                row[0].y_tokens = layer.queries
            # Keys are labelled once, below the last of the maps that share them.
            label_keys = below is None or below.keys != layer.keys or len(below.heads) < len(layer.heads)
            if fits and label_keys:
                for panel in row:
                    panel.x_tokens = layer.keys
            rows.append(row)
        longest = max(max(len(layer.queries), len(layer.keys)) for layer in page_layers)
        side = panel_side(len(heads), longest)
        yield Page("attention_maps", title, rows, (side, side), bar="attention weight")


def _map(layer: LayerAttention, head: int, end: float) -> Panel:
    table = smaller(layer.weights[head], _SIDE)
    if float(table.min()) < -1e-6:  # a mixer whose weights do not sum to one
        heat = signed(table, end)
    else:
        power = 0.5 if table.numel() > _MANY else 1.0  # resolves small weights
        heat = Heat(without_zeros(table), end, power=power, missing=ZERO_COLOUR)
    return Panel([heat], f"{layer.name}, head {layer.heads[head]}")


def _entropy_page(layers: list[LayerAttention]) -> Page:
    """Return a table of all heads, a row for each layer."""
    columns = max(max(layer.heads) for layer in layers) + 1
    table = torch.full((len(layers), columns), math.nan)
    cells = []
    for row, layer in enumerate(layers):
        table[row, layer.heads] = layer.share
        for index in range(len(layer.heads)):
            cells.append(_entropy_cell(layer, index, row))
    panel = Panel(
        [Heat(table, missing=ZERO_COLOUR, stretched=True), *cells],
        x_names=[f"head {head}" for head in range(columns)],
        y_names=[layer.name for layer in layers],
    )
    title = "Entropy of attention: in nats, and as a share of the maximum, the logarithm of the number of visible keys"
    size = (max(3.5, 0.75 * columns + 1.2), 0.32 * len(layers) + 0.5)
    return Page("attention_entropy", title, [[panel]], size, bar="share of the maximum")


def _entropy_cell(layer: LayerAttention, index: int, row: int) -> Mark:
    """Return the text in the cell of one head."""
    nats = float(layer.entropy[index])
    share = float(layer.share[index])
    if math.isnan(nats):
        content = "none"
    elif math.isnan(share):
        content = f"{nats:.2f}"
    else:
        content = f"{nats:.2f}  {share:.0%}"
    colour = "white" if share < 0.55 else INK  # the cell of a small share is dark
    return text(layer.heads[index], row, content, colour=colour)
