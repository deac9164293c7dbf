"""The splits of a table's rows: those that the file names, and held-out shares of the training rows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Splits
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import stratified
from blockyard.errors import UserError

log = logging.getLogger("blockyard")


def split_rows(
    path: Path | str,
    target: Tensor,
    assigned: Sequence[int] | None,
    fractions: tuple[float, float],
    seed: int,
    units: Tensor | None = None,
) -> list[Tensor]:
    """Return the rows of the training, validation and test split, each ascending. Raises UserError for an empty one.

    target: (rows,) int64 classes; assigned: 0 train, 1 validation, 2 test for each row, or None
    fractions: of all rows that go to validation and test, where the file assigns none to them; every class gives the
        same share, drawn by `seed`
    units: (rows,) int64, rows of one number stay together; None where each is alone
    """
    rest = torch.arange(len(target))
    held = {"test": rest[:0], "validation": rest[:0]}
    if assigned is not None:
        if len(assigned) != len(target):
            raise UserError(f"{path}: {len(assigned):,} rows have a split, and there are {len(target):,} rows")
        part = torch.tensor(assigned)
        rest, held["validation"], held["test"] = (rest[part == number] for number in range(3))
    for name, fraction in (("test", fractions[1]), ("validation", fractions[0])):
        if not len(held[name]) and len(rest):
            share = min(fraction * len(target) / len(rest), 1.0)
            rest, held[name] = _held_out(target, rest, share, mix(name, seed), units)
    splits = [rest, held["validation"], held["test"]]
    for name, split in zip(Splits._fields, splits, strict=True):
        if not len(split):
            raise UserError(f"{path}: no row is left for the {name} split; use more rows, or another share of them")
    return splits


def _held_out(target: Tensor, rest: Tensor, share: float, seed: int, units: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the rows of `rest` that stay, and the held-out rows: a share of the units, by their first row's class."""
    if units is None:
        kept, held = stratified(target[rest], share, seed)
        return rest[kept], rest[held]
    own = units[rest].unique(return_inverse=True)[1]  # (rest,) numbers from 0
    first = torch.full((int(own.max()) + 1,), len(own)).scatter_reduce(0, own, torch.arange(len(own)), "amin")
    # In the order of their first rows, so that rows that are all alone are drawn as without units.
    first, order = first.sort()
    _, held = stratified(target[rest[first]], share, seed)
    chosen = torch.zeros(len(order), dtype=torch.bool)
    chosen[order[held]] = True
    return rest[~chosen[own]], rest[chosen[own]]


def together(keys: Sequence[Hashable], groups: Sequence[Hashable] | None = None) -> tuple[Tensor | None, int]:
    """Return which rows stay together, as in `split_rows`, and how many repeat the key of an earlier row.

    keys: what a model reads of each row; groups: the group of each row. Rows that share one of the two, directly or
    over others, are of one unit; None where each row is alone.
    """
    numbers: dict[Hashable, int] = {}
    own = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])
    repeated = len(keys) - len(numbers)
    if groups is None:
        return (own if repeated else None), repeated
    of_group: dict[Hashable, int] = {}
    group = torch.tensor([of_group.setdefault(key, len(of_group)) for key in groups])
    if not repeated:
        return group, 0
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = len(numbers) + len(of_group)
    edges = coo_array((np.ones(len(own)), (own.numpy(), group.numpy() + len(numbers))), shape=(size, size))
    labels = connected_components(edges, directed=False)[1]
    return torch.from_numpy(labels[own.numpy()]).long(), repeated


def warn_of_duplicates(path: Path | str, parts: Sequence[Sequence[Hashable]], things: str = "texts") -> None:
    """Warn of the inputs that a model is tested on and that occur in an earlier split too, with their number."""
    train, validation, test = (Counter(part) for part in parts)
    for name, own, earlier, inputs in (
        ("validation", validation, "training", train),
        ("test", test, "training", train),
        ("test", test, "validation", validation),
    ):
        shared = sum(count for key, count in own.items() if key in inputs)
        if shared:
            log.warning(
                "%s: %d of %d %s %s occur in the %s split too", path, shared, own.total(), name, things, earlier
            )


def warn_of_cut(lengths: Sequence[int], context: int, things: str = "texts") -> None:
    """Warn of texts that are longer than a model reads, with their number. lengths: (n,) tokens of each whole text"""
    cut = sum(length > context for length in lengths)
    if cut:
        log.warning(
            "%d of %d %s are longer than data.context=%d; the median has %d tokens",
            *(cut, len(lengths), things, context, int(np.median(lengths))),
        )
