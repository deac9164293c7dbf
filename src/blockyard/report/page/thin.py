"""A comparison made small enough for a page: few points a curve, few digits a number."""

from __future__ import annotations

import math
from typing import Any

AXES = ("step", "samples", "flops", "seconds")
POINTS = 240  # of one metric in one run; a chart is about 1,000 pixels wide
ALL_POINTS = 60_000  # of one metric in all runs together: above it, fewer a run
_FEWEST = 60
_DIGITS = 6


def thin(comparison: dict[str, Any]) -> dict[str, Any]:
    """The same comparison with thinned curves and rounded numbers; NaN and infinity become None."""
    curves = comparison.get("curves") or []
    limit = max(_FEWEST, min(POINTS, ALL_POINTS // max(len(curves), 1)))
    return plain(comparison | {"curves": [_curve(curve, limit) for curve in curves]})


def _curve(curve: dict[str, Any], limit: int) -> dict[str, Any]:
    """The rows kept of one run: of each metric evenly spread ones, its first and its last."""
    metrics = curve.get("metrics") or {}
    kept: set[int] = set()
    for values in metrics.values():
        rows = [row for row, value in enumerate(values) if value is not None]
        if len(rows) > limit:
            rows = [rows[round(k * (len(rows) - 1) / (limit - 1))] for k in range(limit)]
        kept.update(rows)
    order = sorted(kept)
    axes = {axis: [curve[axis][row] for row in order] if curve.get(axis) else [] for axis in AXES}
    return curve | axes | {"metrics": {name: [values[row] for row in order] for name, values in metrics.items()}}


def plain(value: Any) -> Any:
    """JSON-safe data with floats of six significant digits."""
    if isinstance(value, bool) or value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)
