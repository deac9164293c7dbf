"""`blockyard inspect equivariance`: whether permuted tokens give permuted outputs, with positions and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.inspect.figures.equivariance_figure import draw_equivariance
from blockyard.inspect.options import Options
from blockyard.inspect.permuted import Permuted, PermutedStage, permuted
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import load_samples, samples_name
from blockyard.runs.load import Loaded

EXACT = 1e-10  # in float64; rounding leaves about 1e-15


def equivariance_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns |f(P x) - P f(x)| / |f(x)| after each block."""
    samples = load_samples(loaded, options)
    result = permuted(loaded.model, samples, options.permute)
    arms = tuple(result.stages)
    pairs = zip(*result.stages.values(), strict=True)
    return InspectionResult(
        numbers={
            "samples": [sample.index for sample in samples],
            "permute": options.permute,
            "order": result.order.tolist(),
            **{f"{arm}_positions": [_numbers(stage) for stage in stages] for arm, stages in result.stages.items()},
        },
        columns=("after", *(f"{arm} positions" for arm in arms)),
        rows=[(row[0].name.replace(".", " "), *(_shown(stage) for stage in row)) for row in pairs],
        figures=draw_equivariance(result, samples[0], options.permute, folder),
        summary=f"|f(Px) - Pf(x)| / |f(x)| of {samples_name(samples)}, 0 below {EXACT:g}; {_verdict(result)}",
    )


def _numbers(stage: PermutedStage) -> dict[str, Any]:
    tokens = None if stage.tokens is None else to_json(stage.tokens)
    return {"name": stage.name, "relative": stage.relative, "tokens": tokens}


def _shown(stage: PermutedStage) -> str:
    return "0" if stage.relative < EXACT else f"{stage.relative:.3g}"


def _verdict(result: Permuted) -> str:
    exact = {arm: all(stage.relative < EXACT for stage in stages) for arm, stages in result.stages.items()}
    if exact.get("with"):
        return "the positions of this model change nothing"
    if exact["without"]:
        return "without positions the model treats its tokens as a set"
    return "a mixer or a mask depends on the order of the tokens, also without positions"
