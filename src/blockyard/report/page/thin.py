"""Reduce a comparison to what a page can show: fewer points a curve, fewer digits a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
MAX_POINTS = 240  # of one metric in one run; a chart is about 1,000 pixels wide
MAX_TOTAL = 60_000  # of one metric in all runs together
_MIN_POINTS = 60
_DIGITS = 6


def thin(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison with thinned curves and rounded numbers; NaN and infinity become None."""
    curves = comparison.get("curves") or []
    limit = max(_MIN_POINTS, min(MAX_POINTS, MAX_TOTAL // max(len(curves), 1)))
    thinned: dict[str, Any] = plain({**comparison, "curves": [_curve(curve, limit) for curve in curves]})
    return thinned


def _curve(curve: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return one run's curve with evenly spaced points of each metric, the first and the last included."""
    metrics = curve.get("metrics") or {}
    kept: set[int] = set()
    for values in metrics.values():
        indices = [index for index, value in enumerate(values) if value is not None]
        if len(indices) > limit:
            indices = [indices[round(k * (len(indices) - 1) / (limit - 1))] for k in range(limit)]
        kept.update(indices)
    order = sorted(kept)

    def at_order(values: list[T]) -> list[T]:
        return [values[index] for index in order] if values else []

    return {
        **curve,
        "step": at_order(curve["step"]),
        "samples": at_order(curve["samples"]),
        "flops": at_order(curve["flops"]),
        "seconds": at_order(curve["seconds"]),
        "metrics": {name: at_order(values) for name, values in metrics.items()},
    }


def plain(value: Any) -> Any:
    """Return JSON-safe data with floats of six significant digits."""
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if value.is_integer() and abs(value) < 1e15:
            return int(value)
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)
