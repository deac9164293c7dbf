"""Configs made straight from the YAML files, and sets of them that cover every pair of choices."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import yaml

from blockyard import catalog
from blockyard.check import default_pick
from blockyard.compose import Composed, complete, compose
from blockyard.contracts import Batch
from blockyard.model._prefix import Prefix
from blockyard.rules import RULES, Facts
from blockyard.schema import locate

# What a model is made of. The rest (optimizer, trainer, ...) does not change what can be combined.
FAMILIES = (
    "data",
    "tokenizer",
    "position",
    "token_mixer",
    "channel_mixer",
    "norm",
    "block",
    "model",
    "head",
    "objective",
)
# Data that stands for all of its kind; the others need folders.
DATA = ("digits", "code")
SMALL = {"model": {"dim": 16, "depth": 2, "heads": 2}, "data": {"context": 16}, "tokenizer": {"vocab_size": 300}}


@cache
def _base() -> dict[str, Any]:
    return compose(["logger=none"]).config


@cache
def _node(family: str, name: str) -> dict[str, Any]:
    node = yaml.safe_load(catalog.choices(family)[name].path.read_text()) or {}
    node.update({key: value for key, value in SMALL.get(family, {}).items() if key in node})
    return node


def config(choices: dict[str, str]) -> Composed:
    """The composed config of one choice per family, small enough to run in milliseconds."""
    tree = {
        **copy.deepcopy(_base()),
        **{family: copy.deepcopy(_node(family, name)) for family, name in choices.items()},
    }
    if needs_class_token(choices["head"]):
        tree["model"]["prefix"] = {"class_token": True, "registers": 1}
    complete(tree)
    return Composed(tree, dict(choices))


def names() -> dict[str, list[str]]:
    """Every choice of every family, as it lies on the disk."""
    found = {family: list(catalog.choices(family)) for family in FAMILIES}
    return {**found, "data": [name for name in found["data"] if name in DATA]}


def everything() -> list[dict[str, str]]:
    """The full product."""
    return [dict(zip(FAMILIES, row, strict=True)) for row in itertools.product(*names().values())]


def pairwise(accept: Any = None) -> list[dict[str, str]]:
    """Rows in which every pair of choices of two families occurs, found greedily.

    accept(row) -> bool limits the rows to those it accepts; pairs that no accepted row holds are left.
    """
    lists = names()
    open_pairs = {((f, a), (g, b)) for f, g in itertools.combinations(FAMILIES, 2) for a in lists[f] for b in lists[g]}
    rows = everything() if accept is None else [row for row in everything() if accept(row)]
    generator = torch.Generator().manual_seed(0)
    rows = [rows[i] for i in torch.randperm(len(rows), generator=generator).tolist()]
    chosen = []
    for threshold in (30, 20, 12, 8, 5, 3, 2, 1):  # rows that settle many pairs first
        for row in rows:
            items = list(row.items())
            news = [pair for pair in itertools.combinations(items, 2) if pair in open_pairs]
            if len(news) >= threshold:
                chosen.append(row)
                open_pairs -= set(news)
    return chosen


def legal(row: dict[str, str]) -> bool:
    """Whether no rule refuses a row, as its YAMLs stand."""
    return all(
        _judged(number, *(row[family] for family in rule.pair), row["data"], row["tokenizer"], row["head"])
        for number, rule in enumerate(RULES)
    )


@cache
def needs_class_token(head: str) -> bool:
    """Whether a head reads the class token, so that its model must have one."""
    return locate(catalog.choices("head")[head].target).needs_class_token


@cache
def _judged(number: int, first: str, second: str, data: str, tokenizer: str, head: str) -> bool:
    rule = RULES[number]
    asked = {"data": data, "tokenizer": tokenizer, **dict(zip(rule.pair, (first, second), strict=True))}
    picks = {family: default_pick(catalog.choices(family)[name]) for family, name in asked.items()}
    if "model" in picks and needs_class_token(head):
        picks["model"] = replace(picks["model"], options={"prefix": Prefix(class_token=True, registers=1)})
    try:
        return rule.reason(Facts(picks)) is None
    except ValueError:
        return False  # the tokenizer cannot read this data


def batch_for(plan: Any, size: int = 2) -> Batch:
    """Random inputs and targets of the shape that a plan's data promises. Reads nothing."""
    generator = torch.Generator().manual_seed(0)
    spec = plan.data.spec
    if spec.modality == "image":
        inputs = torch.rand(size, *spec.shape, generator=generator)
        return Batch(inputs, torch.randint(spec.classes, (size,), generator=generator))
    length = spec.shape[0] + 1
    return Batch(torch.randint(plan.tokens().vocabulary, (size, length), generator=generator))
