"""Precision, recall and F1 of each type of spans, beside the values of all spans in tagging runs: f1@PER.

Without heavy imports, for commands that print them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_OF_TYPE = re.compile(r"(?:(?:val|test|train)/)?(precision|recall|f1)@(.+)", re.DOTALL)


def of_type(metric: str) -> bool:
    """Return whether a metric is precision, recall or F1 of the spans of one type."""
    return bool(_OF_TYPE.fullmatch(metric))


def table_of_types(metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return precision, recall and F1 of each type of spans as a table, beside the F1 of baselines; "" without types.

    metrics: of one split, by name without a prefix; baselines: the same of each, by its name
    """
    types = []
    for name in metrics:
        match = _OF_TYPE.fullmatch(name)
        if match and match[1] == "f1":
            types.append(match[2])
    if not types:
        return ""
    rivals = {name: values for name, values in baselines.items() if any(map(of_type, values))}
    rows = [["type", "precision", "recall", "f1", *(f"f1 of {name}" for name in rivals)]]
    for kind in types:
        scores = [metrics.get(f"{score}@{kind}") for score in ("precision", "recall", "f1")]
        scores += [values.get(f"f1@{kind}") for values in rivals.values()]
        rows.append([kind, *map(_number, scores)])
    means = [metrics.get("macro_f1"), *(values.get("macro_f1") for values in rivals.values())]
    rows.append(["mean of types", "", "", *map(_number, means)])
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for kind, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([kind.ljust(first), *aligned]) + "\n")
    return "".join(lines)


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4f}"
