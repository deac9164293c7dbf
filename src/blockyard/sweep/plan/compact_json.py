"""A plan as JSON of a bearable size: thousands of configs differ in a few nodes, so each node is kept once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from blockyard.runs.redact import is_secret_key, redact, redact_command, redact_text

FORMAT = 1


class Nodes:
    """Plain values, each different one kept once. Found equal by their JSON."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        """The place of a value in `values`."""
        text = json.dumps(value)
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(value)
        return self._numbers[text]

    def shared(self, value: Any) -> Any:
        """The kept value that equals this one."""
        return self.values[self.number(value)]

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        """A config whose nodes are the kept ones. They belong to many configs: do not write into them."""
        return {key: self.shared(node) for key, node in config.items()}


def pack(variants: Iterable[Any], cells: Iterable[Any]) -> dict[str, Any]:
    """Variants and cells as plain data, nodes apart."""
    nodes = Nodes()
    rows = [
        [
            v.key,
            v.arm,
            v.setting,
            nodes.number(v.choices),
            nodes.number(list(v.config)),
            [nodes.number(node) for node in v.config.values()],
        ]
        for v in variants
    ]
    return {"format": FORMAT, "nodes": nodes.values, "variants": rows, "cells": _grouped(cells)}


def clean(value: Any) -> Any:
    """A copy without secrets, those in overrides (`key=value`) included. Each text is looked at once."""
    known: dict[str, str] = {}

    def text(word: str) -> str:
        if word not in known:
            known[word] = redact_command([word])[0] if "=" in word else redact_text(word)
        return known[word]

    def copied(item: Any) -> Any:
        if isinstance(item, dict):
            return {k: redact({k: v})[k] if is_secret_key(str(k)) else copied(v) for k, v in item.items()}
        if isinstance(item, list | tuple):
            return [copied(each) for each in item]
        return text(item) if isinstance(item, str) else item

    return copied(value)


def variants(packed: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of each variant. Equal nodes are one object."""
    nodes = packed["nodes"]
    return [
        {
            "key": key,
            "arm": arm,
            "setting": setting,
            "choices": dict(nodes[choices]),
            "config": {name: nodes[number] for name, number in zip(nodes[names], numbers, strict=True)},
        }
        for key, arm, setting, choices, names, numbers in packed["variants"]
    ]


def cells(packed: dict[str, Any]) -> list[tuple[str, int, str]]:
    """(variant, seed, run) of each cell."""
    return [(variant, seed, f"{folder}/s{seed}") for variant, folder, seeds in packed["cells"] for seed in seeds]


def _grouped(cells: Iterable[Any]) -> list[list[Any]]:
    groups: list[list[Any]] = []
    for cell in cells:
        folder, _, last = cell.run.rpartition("/")
        if last != f"s{cell.seed}":
            raise ValueError(f"{cell.run} is no run of seed {cell.seed}")
        if not groups or groups[-1][:2] != [cell.variant, folder]:
            groups.append([cell.variant, folder, []])
        groups[-1][2].append(cell.seed)
    return groups
