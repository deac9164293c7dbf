"""`blockyard inspect mixing`: which token reads from which, in every layer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.inspect.figures.mixing_figure import draw_mixing, merge_neighbours
from blockyard.inspect.mixing import LayerMixing, mixing_layers, to_double
from blockyard.inspect.options import Options
from blockyard.inspect.pattern import pattern
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import load_samples, samples_name
from blockyard.inspect.spectrum import effective_rank
from blockyard.runs.load import Loaded

SIDE = 128  # most rows and columns of a table in the JSON; neighbours are merged beyond


def mixing_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the token mixing of each selected layer."""
    model, samples = to_double(loaded.model, load_samples(loaded, options))
    layers = mixing_layers(model, samples, of=options.of, layers=options.layers, probes=options.probes)
    method = _method(layers)
    averaged = f"{'Mean over' if len(samples) > 1 else 'Of'} {samples_name(samples)}; {method}"
    return InspectionResult(
        numbers={
            "of": options.of,
            "samples": [sample.index for sample in samples],
            "layers": [_numbers(layer) for layer in layers],
        },
        columns=("layer", "mixer", "reads from", "gain", "from itself", "rank", "varies between samples"),
        rows=[_row(layer) for layer in layers],
        figures=draw_mixing(layers, averaged, folder),
        summary=f"{averaged}. gain: |dy/dx|_F / sqrt(N D); from itself: the diagonal's share of the squared norm; "
        f"rank: singular values above a thousandth of the largest, and effective rank",
    )


def layer_pattern(layer: LayerMixing) -> str:
    """Returns the name of a layer's pattern; the grid applies to its own sequence only, not to a memory."""
    return pattern(layer.norms, None if layer.memory else layer.grid, layer.prefix)


def _method(layers: list[LayerMixing]) -> str:
    probes = layers[0].probes
    if not probes:
        return "exact"
    error = max(layer.error for layer in layers)
    return f"estimated from {probes} random directions a token (standard error {error:.0%})"


def _numbers(layer: LayerMixing) -> dict[str, Any]:
    return {
        "path": layer.path,
        "mixer": layer.mixer,
        "pattern": layer_pattern(layer),
        "rank": rank(layer.norms),
        "effective_rank": effective_rank(torch.linalg.svdvals(layer.norms)),
        "differs": layer.variation,
        "probes": layer.probes,
        "standard_error": None if math.isnan(layer.error) else layer.error,
        "prefix": layer.prefix,
        "grid": layer.grid,
        "rows": layer.rows,
        "columns": layer.columns,
        "norms": to_json(merge_neighbours(layer.norms, SIDE)),
    }


def _row(layer: LayerMixing) -> tuple[str, ...]:
    return (
        layer.name,
        layer.mixer,
        layer_pattern(layer),
        f"{float(layer.norms.square().mean(0).sum().sqrt()):.3g}",
        "" if layer.memory else f"{_diagonal_share(layer.norms):.0%}",
        f"{rank(layer.norms)} ({effective_rank(torch.linalg.svdvals(layer.norms)):.1f})",
        "" if layer.variation is None else f"{layer.variation:.1%}",
    )


def rank(norms: Tensor) -> int:
    """Returns how many singular values of a matrix are above a thousandth of the largest."""
    return int(torch.linalg.matrix_rank(norms, rtol=1e-3))


def _diagonal_share(norms: Tensor) -> float:
    power = norms.square()
    return float(power.diagonal().sum() / power.sum().clamp_min(1e-30))
