"""The attention maps that runs have saved, for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.report.load.run_record import RunRecord

FILE = "attention.json"  # as callbacks.attention_maps names it; importing that imports torch
MAX_MAPS = 60  # in all; each arm shows its first layers and heads


def maps(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """Return the last maps of each arm's first run that has any: arm, seed, name of the layer, map."""
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.done and record.arm not in by_arm and (saved := _saved(record)):
            by_arm[record.arm] = saved
    per_arm = max(1, MAX_MAPS // max(1, len(by_arm)))
    return [each for saved in by_arm.values() for each in saved[:per_arm]][:MAX_MAPS]


def _saved(record: RunRecord) -> list[dict[str, Any]]:
    try:
        saved = read_json(record.path / FILE)["maps"]
        last = max((each["step"] for each in saved), default=0)
        return [
            {
                "arm": record.arm,
                "seed": record.seed,
                "layer": _layer(each),
                "image": None,
                "map": _finite_table(each["map"]),
            }
            for each in saved
            if each["step"] == last
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # missing or damaged: the page shows the rest


def _layer(saved: dict[str, Any]) -> str:
    head = saved.get("head")
    return f"block {saved['layer']}" + ("" if head is None else f", head {head}")


def _finite_table(table: Any) -> list[list[float | None]]:
    return [[None if value is None or not math.isfinite(value) else float(value) for value in row] for row in table]
