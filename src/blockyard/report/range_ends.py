"""Tuned values that lie at an end of the range that was tried, where a wider range may hold a better one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from blockyard.report.load.arms import ComparisonInput

NEAR = 0.05  # of a continuous range, on its own scale, counts as its end


def range_ends(data: ComparisonInput) -> Iterator[str]:
    """Yield a sentence for each tuned key and each end of its range at which validation chose arms' values."""
    question = data.question or {}
    tried: Mapping[str, Any] = question.get("tune") or (question.get("search") or {}).get("space") or {}
    for key, values in tried.items():
        ends: dict[str, list[str]] = {}
        for arm in data.arms:
            value = (arm.chosen or {}).get(key)
            if _number(value) and (end := _end(value, values)):
                ends.setdefault(end, []).append(f"{arm.name} ({value:.4g})")
        for end, names in ends.items():
            yield f"{key}: {end} was best for {', '.join(names)}; a wider range may hold a better one"


def _end(value: float, values: Any) -> str | None:
    """Which end of a list of values, or of a range from low to high, a value is at."""
    if isinstance(values, list):
        numbers = sorted(each for each in values if _number(each))
        if len(numbers) != len(values) or len(numbers) < 2 or value == 0:  # nothing lies below a rate of zero
            return None
        shown = ", ".join(f"{each:.4g}" for each in numbers)
        return {numbers[0]: f"the smallest of {shown}", numbers[-1]: f"the largest of {shown}"}.get(value)
    low, high = values["low"], values["high"]
    scale = math.log if values.get("log") else float
    share = (scale(value) - scale(low)) / (scale(high) - scale(low)) if high > low else 0.5
    if share <= NEAR and low != 0:
        return f"the lower end of {low:.4g} to {high:.4g}"
    return f"the upper end of {low:.4g} to {high:.4g}" if share >= 1 - NEAR else None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
