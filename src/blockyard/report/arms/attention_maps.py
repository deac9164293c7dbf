"""The attention maps that runs have saved, for the page."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blockyard.atomic_files import read_json, read_member
from blockyard.errors import UserError
from blockyard.report.load.document import MapRow
from blockyard.report.load.run_record import LoadedRun

log = logging.getLogger("blockyard")

FILE = "attention.json"  # as callbacks.attention_maps names it; importing that imports torch
MAX_MAPS = 60  # in all; each arm shows its first layers and heads


def maps(records: Iterable[LoadedRun]) -> list[MapRow]:
    """Return the last maps of each arm's first run that has any: arm, seed, name of the layer, map."""
    by_arm: dict[str, list[MapRow]] = {}
    for record in records:
        if not record.done or record.arm in by_arm:
            continue
        saved = _saved(record)
        if saved:
            by_arm[record.arm] = saved
    per_arm = max(1, MAX_MAPS // max(1, len(by_arm)))
    return list(itertools.chain(*(saved[:per_arm] for saved in by_arm.values())))[:MAX_MAPS]


def _saved(record: LoadedRun) -> list[MapRow]:
    """Return the maps of the last step that a run has saved; none where the file is missing or damaged."""
    try:
        saved = read_json(record.path / FILE, read=read_member)["maps"]
        last = max((entry["step"] for entry in saved), default=0)
        shown = [entry for entry in saved if entry["step"] == last]
        rows = []
        for entry, name in zip(shown, _names(shown), strict=True):
            rows.append(MapRow(arm=record.arm, seed=record.seed, layer=name, map=_finite_table(entry["map"])))
        return rows
    except UserError as error:
        log.warning("%s", error)
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return []  # missing or damaged: the page shows the rest


def _names(saved: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the layer of each map: its block, or its path where the block has several attentions or there is none.

    A block that a run visits more than once has a map for each visit.
    """
    paths: dict[object, set[object]] = {}
    for entry in saved:
        paths.setdefault(entry["layer"], set()).add(entry.get("path"))
    names: list[str] = []
    visits = Counter[str]()
    for entry in saved:
        layer = entry["layer"]
        if layer is not None and len(paths[layer]) == 1:
            name = f"block {layer}"
        else:
            name = str(entry.get("path") or "outside of the blocks")
        head = "" if entry.get("head") is None else f", head {entry['head']}"
        visits[name + head] += 1
        visit = visits[name + head]
        if visit > 1:
            name += f", visit {visit}"
        names.append(name + head)
    return names


def _finite_table(table: Any) -> list[list[float | None]]:
    rows: list[list[float | None]] = []
    for values in table:
        row: list[float | None] = []
        for value in values:
            is_known = value is not None and math.isfinite(value)
            row.append(float(value) if is_known else None)
        rows.append(row)
    return rows
