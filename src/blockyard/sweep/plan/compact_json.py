"""Stores a plan as compact JSON: thousands of configs differ in a few nodes, so each distinct node is kept once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypedDict

from blockyard.config.tree import Node
from blockyard.runs.redact import is_secret_key, redact, redact_command, redact_text
from blockyard.sweep.cells import Variant

FORMAT = 1


class PackedPlan(TypedDict):
    """Variants and cells, as lists in a fixed order, that refer to nodes by index."""

    format: int
    nodes: list[Any]
    variants: list[list[Any]]
    cells: list[list[Any]]


class SharedNodes:
    """Distinct plain values. Two values are the same where their JSON is."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._indices: dict[str, int] = {}

    def index(self, value: Any) -> int:
        """Return the index of a value in `values`; append a new value."""
        text = json.dumps(value)
        if text not in self._indices:
            self._indices[text] = len(self.values)
            self.values.append(value)
        return self._indices[text]

    def shared(self, value: Any) -> Any:
        """Return the stored value that equals this one."""
        return self.values[self.index(value)]

    def config(self, config: Node) -> Node:
        """Return a config made of stored nodes. Many configs share them: do not write into them."""
        return {key: self.shared(node) for key, node in config.items()}


def pack(variants: Iterable[Any], cells: Iterable[Any]) -> PackedPlan:
    """Return variants and cells as plain data."""
    nodes = SharedNodes()
    packed: list[list[Any]] = []
    for variant in variants:
        choices = nodes.index(variant.choices)
        names = nodes.index(list(variant.config))
        values = [nodes.index(node) for node in variant.config.values()]
        packed.append([variant.key, variant.arm, variant.setting, choices, names, values])
    return {"format": FORMAT, "nodes": nodes.values, "variants": packed, "cells": _grouped(cells)}


def without_secrets(value: Any) -> Any:
    """Return a copy without secrets, also in overrides (`key=value`). Each distinct text is checked once."""
    cleaned: dict[str, str] = {}

    def text(raw: str) -> str:
        if raw not in cleaned:
            cleaned[raw] = redact_command([raw])[0] if "=" in raw else redact_text(raw)
        return cleaned[raw]

    def copied(item: Any) -> Any:
        if isinstance(item, dict):
            plain = {}
            for key, entry in item.items():
                plain[key] = redact({key: entry})[key] if is_secret_key(str(key)) else copied(entry)
            return plain
        if isinstance(item, list | tuple):
            return list(map(copied, item))
        return text(item) if isinstance(item, str) else item

    return copied(value)


def variants(packed: PackedPlan) -> list[Variant]:
    """Return the variants. Equal nodes are one object."""
    nodes = packed["nodes"]
    unpacked = []
    for key, arm, setting, choices, names, indices in packed["variants"]:
        config = {name: nodes[index] for name, index in zip(nodes[names], indices, strict=True)}
        unpacked.append(Variant(key=key, arm=arm, setting=setting, choices=dict(nodes[choices]), config=config))
    return unpacked


def cells(packed: PackedPlan) -> list[tuple[str, int, str]]:
    """Return (variant, seed, run) of each cell."""
    unpacked = []
    for variant, folder, seeds in packed["cells"]:
        unpacked += [(variant, seed, f"{folder}/s{seed}") for seed in seeds]
    return unpacked


def _grouped(cells: Iterable[Any]) -> list[list[Any]]:
    """Return [variant, folder, seeds] of consecutive cells that differ only in their seed."""
    groups: list[list[Any]] = []
    for cell in cells:
        folder, _, last = cell.run.rpartition("/")
        if last != f"s{cell.seed}":
            raise ValueError(f"{cell.run} does not end in s{cell.seed}, the cell's seed")
        if not groups or groups[-1][:2] != [cell.variant, folder]:
            groups.append([cell.variant, folder, []])
        groups[-1][2].append(cell.seed)
    return groups
