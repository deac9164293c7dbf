"""The splits of a table's rows: those that the file names, and held-out shares of the training rows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import Splits
from blockyard.data._order import mix
from blockyard.data._split import stratified
from blockyard.errors import UserError

log = logging.getLogger("blockyard")


def split_rows(
    path: Path, target: Tensor, assigned: Sequence[int] | None, fractions: tuple[float, float], seed: int
) -> list[Tensor]:
    """Returns the rows of the training, validation and test split, each ascending. Raises UserError for an empty one.

    target: (rows,) int64 classes; assigned: 0 train, 1 validation, 2 test for each row, or None
    fractions: of all rows that go to validation and test, where the file assigns none to them; every class gives the
        same share, drawn by `seed`
    """
    rest = torch.arange(len(target))
    held = {"test": rest[:0], "validation": rest[:0]}
    if assigned is not None:
        part = torch.tensor(assigned)
        rest, held["validation"], held["test"] = (rest[part == number] for number in range(3))
    for name, fraction in (("test", fractions[1]), ("validation", fractions[0])):
        if not len(held[name]) and len(rest):
            kept, held_out = stratified(target[rest], min(fraction * len(target) / len(rest), 1.0), mix(name, seed))
            rest, held[name] = rest[kept], rest[held_out]
    splits = [rest, held["validation"], held["test"]]
    for name, split in zip(Splits._fields, splits, strict=True):
        if not len(split):
            raise UserError(f"{path}: no row is left for the {name} split; use more rows, or another share of them")
    return splits


def warn_of_duplicates(path: Path, parts: Sequence[Sequence[str]]) -> None:
    """Warns of the texts that a model is tested on and that occur in an earlier split too, with their number."""
    train, validation, test = (Counter(part) for part in parts)
    for name, own, earlier, texts in (
        ("validation", validation, "training", train),
        ("test", test, "training", train),
        ("test", test, "validation", validation),
    ):
        shared = sum(count for text, count in own.items() if text in texts)
        if shared:
            log.warning("%s: %d of %d %s texts occur in the %s split too", path, shared, own.total(), name, earlier)
