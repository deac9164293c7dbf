"""From the checked rows of a table to its splits: who goes where, and what a model gets of each row."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import ImageTokenizer, Splits, Tokenizer
from blockyard.data._pair_file import NAMES
from blockyard.data._split import sha256
from blockyard.data._table_images import RowImages, TableImages
from blockyard.data._table_splits import split_rows, together, warn_of_duplicates
from blockyard.data._table_texts import caption_splits, question_splits, text_splits
from blockyard.data._vectors import vector_splits
from blockyard.data._with_targets import Sliced, with_values

if TYPE_CHECKING:
    from blockyard.data._table_columns import Rows
    from blockyard.data.table import Table

log = logging.getLogger("blockyard")


@dataclass(frozen=True)
class Assigned:
    """The rows of each split, and what is predicted of all rows.

    parts: the rows of the training, validation and test split, ascending; target: (rows,) int64 classes, zeros where
    there are none; values: (rows, T) float64, or None; slices: (rows,) int64, or None
    """

    table: Table
    rows: Rows
    parts: list[Tensor]
    target: Tensor
    values: Tensor | None
    slices: Tensor | None

    @property
    def targets(self) -> list[Tensor]:
        """The classes of each split, (n,) int64."""
        return [self.target[part] for part in self.parts]

    @cached_property
    def images(self) -> RowImages:
        """The images of all rows, checked."""
        table = self.table
        assert table.image is not None
        root = self.rows.files[0].parent if table.root is None else Path(table.root).expanduser()
        images = RowImages(self.rows, table.image, root, table.channels, table.size)
        images.check()
        return images


def load_rows(table: Table, tokenizer: Tokenizer) -> tuple[Splits, str, Tensor]:
    """Returns the splits of a table, their fingerprint, and the rows of the test split (n,).

    Raises UserError as `Table.load` does.
    """
    rows = table.rows
    keys = _keys(table, rows)
    assigned = _assign(table, rows, keys)
    splits, content = _splits(assigned, tokenizer)
    names = [table.label or "label", *table.texts]
    fingerprint = content or sha256(_cells(assigned, names))
    # Images that are written have no other target than their own tokens.
    if assigned.values is not None and not isinstance(tokenizer, ImageTokenizer):
        splits = with_values(splits, [assigned.values[part] for part in assigned.parts], table.target)
    if assigned.slices is not None and table.reads not in ("text", "pair"):
        slices = assigned.slices
        splits = Splits(*(Sliced(split, slices[part]) for split, part in zip(splits, assigned.parts, strict=True)))
    if assigned.values is not None:
        fingerprint = sha256([fingerprint, *(assigned.values[part] for part in assigned.parts)])
    return splits, fingerprint, assigned.parts[2]


def _splits(assigned: Assigned, tokenizer: Tokenizer) -> tuple[Splits, str]:
    """The splits without real-valued targets, and a hash of their content where it is not that of texts."""
    table, rows, parts = assigned.table, assigned.rows, assigned.parts
    classes = None if table.target else len(table.class_names)
    if table.reads == "numbers":
        numbers = torch.from_numpy(rows.numbers(table.columns))
        _tell_missing(table, numbers)
        values = [numbers[part] for part in parts]
        splits = vector_splits(values, assigned.targets, table.columns, classes)
        return Splits(*splits), sha256([*values, *assigned.targets])
    if table.reads == "image":
        table_images = TableImages(
            **{name: getattr(table, name) for name in ("channels", "memory_limit", "workers", "shift", "crop", "flip")},
            side=table.size,
            classes=classes,
        )
        return table_images.of_rows(assigned.images, parts, assigned.targets, tokenizer), table_images.content
    if table.reads == "caption":
        return caption_splits(assigned, tokenizer)
    return question_splits(assigned, tokenizer) if table.reads == "question" else (text_splits(assigned, tokenizer), "")


def _assign(table: Table, rows: Rows, keys: list[Hashable]) -> Assigned:
    """Draws or reads the splits, and checks them."""
    target = torch.zeros(len(rows), dtype=torch.int64)
    if table.class_names:
        target = _numbers(rows, table.label or "label", table.class_names)
    named = [NAMES[name] for name in rows.texts(table.split)] if "data.split" in table.named_columns else None
    groups = None if table.group is None else rows.texts(table.group)
    fractions = (table.validation_fraction, table.test_fraction)
    units, repeated = together(keys, groups)
    if named is not None and groups is not None:
        _refuse_crossing(table, rows, groups, named)
    if repeated and named is None:
        log.warning(
            "%s: %d of %d rows repeat the inputs of an earlier one; they stay in its split",
            table.path,
            repeated,
            len(rows),
        )
    parts = split_rows(table.path, target, named, fractions, table.split_seed, units)
    if table.class_names:
        _check_classes(table, rows, target, parts[0])
    parts = [part[table.kept(number, len(part), target[part])] for number, part in enumerate(parts)]
    warn_of_duplicates(
        table.path, [[keys[i] for i in part.tolist()] for part in parts], _THINGS.get(table.reads, "rows")
    )
    values = torch.from_numpy(rows.numbers(table.target)) if table.target else None
    slices = None if table.slices is None else _numbers(rows, table.slices, table.slice_names)
    return Assigned(table, rows, parts, target, values, slices)


_THINGS = {"text": "texts", "pair": "pairs", "image": "images"}


def _keys(table: Table, rows: Rows) -> list[Hashable]:
    """What a model reads of each row, to tell repeated ones."""
    if table.reads == "numbers":
        return [row.tobytes() for row in rows.numbers(table.columns)]
    columns = [rows.texts(name) for name in table.texts]
    if table.image is not None:
        columns.append(
            [
                str(cell) if isinstance(cell, str) else sha256([str(cell)])
                for cell in rows.table[table.image].to_pylist()
            ]
        )
    return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


def _numbers(rows: Rows, column: str, names: Sequence[str]) -> Tensor:
    """The cells of a column as their index in `names`, (rows,) int64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return torch.tensor(np.array(pc.index_in(rows.table[column], pa.array(list(names)))), dtype=torch.int64)


def _check_classes(table: Table, rows: Rows, target: Tensor, train: Tensor) -> None:
    trained = np.isin(target.numpy(), target[train].numpy())
    rows.refuse(
        {
            f"no training row has the {table.label} {name!r}": (target == number).numpy() & ~trained
            for number, name in enumerate(table.class_names)
        }
    )


def _refuse_crossing(table: Table, rows: Rows, groups: Sequence[str], named: Sequence[int]) -> None:
    """Raises UserError naming the rows of groups that the file puts in more than one split."""
    first: dict[str, int] = {}
    crossing = {group for group, part in zip(groups, named, strict=True) if first.setdefault(group, part) != part}
    mask = np.array([group in crossing for group in groups])
    some = ", ".join(sorted(crossing)[:5])
    rows.refuse({f"{len(crossing)} of the {table.group} are in several splits, such as {some}": mask})


def _tell_missing(table: Table, numbers: Tensor) -> None:
    counts = {name: int(gone) for name, gone in zip(table.columns, numbers.isnan().sum(0), strict=True) if gone}
    if counts:
        shown = ", ".join(f"{count} of {name}" for name, count in list(counts.items())[:10])
        log.warning("%s: of %d rows, values are missing: %s; the mean stands for them", table.path, len(numbers), shown)


def _cells(assigned: Assigned, columns: Sequence[str]) -> Iterator[str]:
    """The cells of each split, row by row: the label, then the texts."""
    rows = assigned.rows
    present = [name for name in columns if name in rows.table.column_names]
    for part in assigned.parts:
        yield str(len(part))
        for chunk in part.split(4096):
            yield from (
                " ".join(cells) for cells in zip(*(rows.texts(name, chunk.tolist()) for name in present), strict=True)
            )
