"""The attention maps that runs have kept, as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.report.load.run_record import Record

FILE = "attention.json"  # as callbacks.attention_maps names it; importing that imports torch
MOST = 60  # maps in all; an arm shows its first so many layers and heads


def maps(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The last maps of each arm's first run that has any: arm, seed, layer in words, and the map."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.done and record.arm not in found and (kept := _kept(record)):
            found[record.arm] = kept
    each = max(1, MOST // max(1, len(found)))
    return [one for kept in found.values() for one in kept[:each]][:MOST]


def _kept(record: Record) -> list[dict[str, Any]]:
    try:
        kept = read_json(record.path / FILE)["maps"]
        last = max((one["step"] for one in kept), default=0)
        return [
            {"arm": record.arm, "seed": record.seed, "layer": _words(one), "image": None, "map": _rows(one["map"])}
            for one in kept
            if one["step"] == last
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # there is none, or it is damaged: the page has other things to show


def _words(one: dict[str, Any]) -> str:
    head = one.get("head")
    return f"block {one['layer']}" + ("" if head is None else f", head {head}")


def _rows(table: Any) -> list[list[float | None]]:
    return [[float(value) if math.isfinite(value) else None for value in row] for row in table]
