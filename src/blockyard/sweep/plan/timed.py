"""Sweeps whose results are read off a clock, so that cells beside each other would change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard.config.tree import Node
from blockyard.runs.costs import COSTS
from blockyard.sweep.spec.threshold import of_metric

_UNITS = ("s", "1/s", "share of peak")
TIMES = frozenset(name for name, (_, unit) in COSTS.items() if unit in _UNITS)  # costs that a clock measures


def by_the_clock(metric: str | None, configs: Mapping[str, Node]) -> str | None:
    """Return what a clock decides in a comparison: an option of its cells, or its metric; None where nothing is.

    configs: of the arms, by name
    """
    for config in configs.values():
        trainer: Any = config.get("trainer") or {}
        seconds = trainer.get("max_seconds")
        if seconds is not None:
            return f"trainer.max_seconds={seconds:g}"
    reached = of_metric(metric)
    if metric in TIMES or (reached is not None and reached.kind == "seconds_to"):
        return metric
    return None
