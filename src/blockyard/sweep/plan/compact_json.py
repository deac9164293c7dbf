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
        """The index of a value in `values`; a new value is appended."""
        text = json.dumps(value)
        if text not in self._indices:
            self._indices[text] = len(self.values)
            self.values.append(value)
        return self._indices[text]

    def shared(self, value: Any) -> Any:
        """The stored value that equals this one."""
        return self.values[self.index(value)]

    def config(self, config: Node) -> Node:
        """A config made of stored nodes. Many configs share them: do not write into them."""
        return {key: self.shared(node) for key, node in config.items()}


def pack(variants: Iterable[Any], cells: Iterable[Any]) -> PackedPlan:
    """Variants and cells as plain data."""
    nodes = SharedNodes()
    packed = [
        [
            v.key,
            v.arm,
            v.setting,
            nodes.index(v.choices),
            nodes.index(list(v.config)),
            [nodes.index(node) for node in v.config.values()],
        ]
        for v in variants
    ]
    return {"format": FORMAT, "nodes": nodes.values, "variants": packed, "cells": _grouped(cells)}


def without_secrets(value: Any) -> Any:
    """A copy without secrets, including those in overrides (`key=value`). Each distinct text is checked once."""
    cleaned: dict[str, str] = {}

    def text(raw: str) -> str:
        if raw not in cleaned:
            cleaned[raw] = redact_command([raw])[0] if "=" in raw else redact_text(raw)
        return cleaned[raw]

    def copied(item: Any) -> Any:
        if isinstance(item, dict):
            return {k: redact({k: v})[k] if is_secret_key(str(k)) else copied(v) for k, v in item.items()}
        if isinstance(item, list | tuple):
            return [copied(each) for each in item]
        return text(item) if isinstance(item, str) else item

    return copied(value)


def variants(packed: PackedPlan) -> list[Variant]:
    """The variants. Equal nodes are one object."""
    nodes = packed["nodes"]
    return [
        Variant(
            key=key,
            arm=arm,
            setting=setting,
            choices=dict(nodes[choices]),
            config={name: nodes[index] for name, index in zip(nodes[names], indices, strict=True)},
        )
        for key, arm, setting, choices, names, indices in packed["variants"]
    ]


def cells(packed: PackedPlan) -> list[tuple[str, int, str]]:
    """(variant, seed, run) of each cell."""
    return [(variant, seed, f"{folder}/s{seed}") for variant, folder, seeds in packed["cells"] for seed in seeds]


def _grouped(cells: Iterable[Any]) -> list[list[Any]]:
    """[variant, folder, seeds] of consecutive cells that differ only in their seed."""
    groups: list[list[Any]] = []
    for cell in cells:
        folder, _, last = cell.run.rpartition("/")
        if last != f"s{cell.seed}":
            raise ValueError(f"{cell.run} does not end in s{cell.seed}, the cell's seed")
        if not groups or groups[-1][:2] != [cell.variant, folder]:
            groups.append([cell.variant, folder, []])
        groups[-1][2].append(cell.seed)
    return groups
