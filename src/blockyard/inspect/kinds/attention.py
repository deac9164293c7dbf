"""`blockyard inspect attention`: maps, the weights of one query, and entropies."""

from __future__ import annotations

import math
from pathlib import Path

from blockyard.errors import UserError
from blockyard.inspect.attention_weights import LayerAttention, attention_layers, query_weights
from blockyard.inspect.figures.attention_figure import draw_attention
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import Sample, load_samples, samples_name
from blockyard.ops.maps import smaller
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "heads", "sample", "samples", "prompt", "query")


SIDE = 128  # most rows and columns of a table in the JSON; neighbours are merged beyond


def inspect(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the attention of each selected layer and head. Raises UserError where no layer attends."""
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
