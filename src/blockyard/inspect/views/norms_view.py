"""`blockyard inspect norms`: how large tokens are after each block, and how many stand out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.inspect.figures.norms_figure import draw_norms
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import load_samples, samples_name
from blockyard.inspect.token_norms import FACTOR, LayerNorms, token_norms
from blockyard.runs.load import Loaded


def norms_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the norms of the tokens of the selected samples, block by block."""
    samples = load_samples(loaded, options)
    layers = token_norms(loaded.model, samples)
    return InspectionResult(
        numbers={
            "samples": [sample.index for sample in samples],
            "factor": FACTOR,
            "layers": [_numbers(layer) for layer in layers],
        },
        columns=("after", "median norm", "largest", "stand out", "class and registers"),
        rows=[_row(layer) for layer in layers],
        figures=draw_norms(layers, samples_name(samples), folder),
        summary=f"Of {samples_name(samples)}. stand out: norms of more than {FACTOR:g} times the median",
    )


def _numbers(layer: LayerNorms) -> dict[str, Any]:
    return {
        "name": layer.name,
        "outliers": layer.outliers,
        "norms": to_json(layer.tokens),
        "prefix": to_json(layer.prefix),
    }


def _row(layer: LayerNorms) -> tuple[str, ...]:
    return (
        layer.name.replace(".", " "),
        f"{layer.median:.3g}",
        f"{float(layer.tokens.max()):.3g}",
        f"{layer.outliers:.2%}",
        f"{float(layer.prefix.mean()):.3g}" if len(layer.prefix) else "",
    )
