"""Precision, recall and F1 of each type of spans, which tagging runs have beside those of all spans: f1@PER.

Without heavy imports, for what prints them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_OF_TYPE = re.compile(r"(?:(?:val|test|train)/)?(precision|recall|f1)@(.+)", re.DOTALL)


def of_type(metric: str) -> bool:
    """Whether a metric is precision, recall or F1 of the spans of one type."""
    return bool(_OF_TYPE.fullmatch(metric))


def table_of_types(metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return precision, recall and F1 of each type of spans as a table, beside the F1 of baselines; "" without types.

    metrics: of one split, by name without a prefix; baselines: the same of each, by its name
    """
    types = [match[2] for name in metrics if (match := _OF_TYPE.fullmatch(name)) and match[1] == "f1"]
    if not types:
        return ""
    rivals = [name for name, values in baselines.items() if any(map(of_type, values))]
    rows = [["type", "precision", "recall", "f1", *(f"f1 of {name}" for name in rivals)]]
    for kind in types:
        own = [metrics.get(f"{score}@{kind}") for score in ("precision", "recall", "f1")]
        rows.append([kind, *map(_number, own), *(_number(baselines[name].get(f"f1@{kind}")) for name in rivals)])
    macro = [baselines[name].get("macro_f1") for name in rivals]
    rows.append(["mean of types", "", "", *map(_number, (metrics.get("macro_f1"), *macro))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    return "".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        + "\n"
        for row in rows
    )


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
