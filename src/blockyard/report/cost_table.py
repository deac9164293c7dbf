"""What an arm costs beside what it gains: figures, ratios to the baseline, and who is not dominated."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

KEYS = {  # name -> the better direction, and the unit
    "parameters": ("min", ""),
    "flops_per_sample": ("min", "FLOPs, forward and backward"),
    "step_seconds": ("min", "s"),
    "samples_per_second": ("max", "1/s"),
    "peak_memory": ("min", "bytes"),
    "cache_bytes_per_token": ("min", "bytes"),
    "decode_tokens_per_second": ("max", "1/s"),
    "seconds": ("min", "s"),
}
AXES = {"flops": "flops_per_sample"} | {key: key for key in KEYS}  # words for an axis -> the figure


def costs(summary: Mapping[str, Any]) -> dict[str, float]:
    """The costs in a run's summary that are numbers."""
    parameters, flops, memory = (summary.get(key) for key in ("parameters", "flops_per_sample", "peak_memory"))
    found = {key: summary.get(key) for key in KEYS}
    found["parameters"] = parameters.get("trainable") if isinstance(parameters, dict) else parameters
    found["flops_per_sample"] = flops.get("training") if isinstance(flops, dict) else flops
    found["peak_memory"] = memory.get("bytes") if isinstance(memory, dict) else memory
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def over_runs(runs: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """The costs of an arm: the median over its runs, so that one that was disturbed does not count."""
    every = list(runs)
    columns = {key: [run[key] for run in every if key in run] for key in KEYS}
    return {key: statistics.median(column) if column else None for key, column in columns.items()}


def ratios(arm: Mapping[str, float | None], baseline: Mapping[str, float | None] | None) -> dict[str, float | None]:
    """Each cost over the baseline's; None where either is not known."""
    other = baseline or {}
    return {key: ratio(arm.get(key), other.get(key)) for key in KEYS}


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """ours / theirs, where that is a number."""
    return ours / theirs if ours is not None and theirs else None


def pareto(points: Mapping[str, tuple[float | None, float | None]], better: str, cheaper: str) -> set[str]:
    """The arms that no other beats: none is at least as good on both axes and better on one.

    points: arm -> (figure, cost); an arm without either is not in the set
    better, cheaper: the better direction of each axis, "max" or "min"
    """
    signs = (1 if better == "max" else -1, 1 if cheaper == "max" else -1)
    known = {
        arm: (signs[0] * figure, signs[1] * cost)
        for arm, (figure, cost) in points.items()
        if figure is not None and cost is not None
    }
    return {
        arm
        for arm, (figure, cost) in known.items()
        if not any(f >= figure and c >= cost and (f > figure or c > cost) for f, c in known.values())
    }
