"""A table of your own: texts, pairs of texts, images or numbers, each row with a class, numbers or a caption.

Source: the layout of the GLUE tasks, Wang et al. 2018 (arXiv 1804.07461)
Reference: pyarrow.csv.read_csv, pyarrow.parquet.read_table; scikit-learn's train_test_split and GroupShuffleSplit

    text                     label   split
    Re: lunch on Friday?     ham     train        CSV, TSV or JSON Lines, also .gz; Parquet or Arrow; one file,
    YOU HAVE WON             spam    test         a folder of them, or a glob

    read                     options                        a model reads
    a text                   text                           a text
    two texts                text, pair                     text, start token, pair
    an image                 image                          an image
    an image and a text      image, text                    the image as a source: with no label, the text is written
    numbers                  columns                        a vector, tokenizer=columns

Classes are the labels as they are written, sorted. A column of the default name that a file lacks is not read. Rows
without a split are drawn by `split_seed`, of each class the same share; rows with the same inputs, or of one group,
stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    CountOrZero,
    DataSpec,
    Length,
    Rate,
    Seed,
    Side,
    Splits,
    Text,
    TextTokenizer,
    Tokenizer,
    Workers,
)
from blockyard.data._table_load import load_rows, read_texts
from blockyard.data.files.images import read_picture
from blockyard.data.files.pairs import NAMES
from blockyard.data.files.table_rows import Kinds, Rows, read_rows
from blockyard.data.files.tables import column_names, files_of
from blockyard.data.splits.loaded import LoadedData, forget, read_once
from blockyard.data.splits.split import Fraction, check_fractions
from blockyard.errors import UserError

# The rows of a table, checked: every one that cannot be used is named with its line and the reason.

MOST_CLASSES = 1000


def checked_rows(table: Table) -> Rows:
    """Returns the rows that `table` reads. Raises UserError naming every row that cannot be used, with its line."""
    named_columns = table.named_columns
    kinds = dict.fromkeys((*table.columns, *table.target), "number") | {str(table.image): "stored"}
    rows = table.read(named_columns, kinds)
    needed = [name for key, name in named_columns.items() if not key.startswith(("data.columns", "data.target"))]
    problems = {f"no {name}": rows.blank(name) for name in needed}
    if table.target:
        gone = np.isnan(rows.numbers(table.target))
        problems[f"no {' nor '.join(table.target)}, which is the target"] = gone.all(1)
    if table.columns:
        problems["no value in any of data.columns"] = np.isnan(rows.numbers(table.columns)).all(1)
    if "data.split" in named_columns:
        valid = np.isin(np.array(rows.texts(table.split), dtype=object).astype(str), list(NAMES))
        problems[f"{table.split} is none of {', '.join(NAMES)}"] = ~valid & ~rows.blank(table.split)
    rows.refuse(problems)
    if "data.label" in named_columns:
        _check_labels(table, rows)
    return rows


def _check_labels(table: Table, rows: Rows) -> None:
    labels = rows.table[table.label or LABEL].unique().to_pylist()
    if len(labels) < 2:
        raise UserError(f"{table.path}: every row has the {table.label} {labels[0]!r}; a class needs another one")
    if len(labels) > MOST_CLASSES:
        raise UserError(
            f"data.label={table.label}: {table.path} has {len(labels):,} different ones, more than {MOST_CLASSES:,} "
            f"classes; for real values use data.target=[{table.label}]"
        )


# What the options of a table say that a model reads of its rows, and which columns that takes.

TEXT, LABEL, SPLIT = "text", "label", "split"

Reads = Literal["text", "pair", "image", "caption", "question", "numbers"]


def check_options(table: Table) -> None:
    """Raises ValueError for options that exclude each other."""
    check_fractions(table.validation_fraction, table.test_fraction)
    if table.columns and (table.image or table.pair):
        raise ValueError("data.columns is for numbers alone; use data.image=null and data.pair=null with it")
    if table.image and table.pair:
        raise ValueError(f"data.pair={table.pair} is a second text; with data.image, use data.pair=null")
    if table.target and table.label not in (None, LABEL):
        raise ValueError(f"data.target and data.label={table.label} both say what is predicted; one must be null")


def reads_of(table: Table) -> Reads:
    """Returns what a model reads of a row."""
    if table.columns:
        return "numbers"
    if table.image is None:
        return "text" if table.pair is None else "pair"
    if not _uses(table, table.text, TEXT):
        return "image"
    return "question" if table.target or _uses(table, table.label, LABEL) else "caption"


def _uses(table: Table, column: str | None, default: str) -> bool:
    """Whether a column is read: one of the default name is where the file has it."""
    return column is not None and (column != default or default in table.names)


def spec_of(table: Table) -> DataSpec:
    """Returns what a row is; without the file, the number of classes is not known."""
    reads, image = table.reads, DataSpec("image", (table.channels, table.size, table.size), levels=256)
    if reads in ("text", "pair"):
        data_spec = DataSpec("text", (table.context,), variable=True, joined=reads == "pair")
    elif reads in ("caption", "question"):
        data_spec = DataSpec("text", (table.context,), variable=True, source=replace(image, levels=None))
    else:
        data_spec = image if reads == "image" else DataSpec("vector", (len(table.columns),))
    if reads == "caption":
        return data_spec
    there = table.missing() is None
    data_spec = replace(data_spec, slices=table.slice_names if there else ())
    if table.target:
        return replace(data_spec, target="values", values=(len(table.target),))
    names = table.class_names if there else ()
    return replace(data_spec, target="class", classes=len(names) or None, class_names=names)


def named_columns(table: Table) -> dict[str, str]:
    """Returns the columns that are read, by the option that names them."""
    columns = dict(zip(("data.text", "data.pair"), table.texts, strict=False))
    columns |= {} if table.image is None else {"data.image": table.image}
    columns |= {f"data.{key}[{n}]": name for key in ("columns", "target") for n, name in enumerate(getattr(table, key))}
    if not table.target and table.reads != "caption":
        columns["data.label"] = table.label or LABEL
    if table.split != SPLIT or SPLIT in table.names:
        columns["data.split"] = table.split
    return columns | {f"data.{key}": name for key in ("group", "slices") if (name := getattr(table, key)) is not None}


MOST_SLICES = 100


@dataclass(kw_only=True, eq=False)
class Table(LoadedData):
    """Rows of tables, read and encoded once.

    Options:
        path: a .csv, .tsv, .jsonl, .parquet or .arrow file, a folder of them, or a glob such as data/part-*.csv
        text: the column of the texts; null reads none
        label: the column of the classes; null reads none
        pair: the column of a second text, as in entailment; null reads none
        image: the column of the images: paths, or the bytes of image files; null reads none
        columns: the columns of numbers that a model reads
        target: the columns of real values that are predicted, instead of a class
        split: the column that says train, val or test; without a column of the name split, all rows are drawn
        group: a column, such as the patient or the author, whose rows never cross splits
        slices: a column by whose values the evaluation is reported too, such as the label; null means none
        validation_fraction: share of all rows that is the validation split, if the file names none
        test_fraction: share of all rows that is the test split, if the file names none
        split_seed: seed of the drawn splits; independent of the run's seed, so that all seeds share them
        context: tokens of a text that a model reads, those of both texts of a pair together; further ones are cut
        root: folder that the paths of images are relative to; null is that of the table
        size: side of an image in pixels after resizing
        channels: 3 for color images, 1 for grayscale
        shift: random translation of training images in pixels, padded with zeros
        crop: random square crop of training images of relative side 1 - crop or more, resized to the full image
        flip: mirror half of the training images left to right
        memory_limit: megabytes of pixels up to which all images are decoded into memory
        workers: threads that decode images
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
    """

    incidental = frozenset({"eval_batch_size", "memory_limit", "workers"})

    path: Text = "data/table.csv"
    text: Text | None = TEXT
    label: Text | None = LABEL
    pair: Text | None = None
    image: Text | None = None
    columns: tuple[Text, ...] = ()
    target: tuple[Text, ...] = ()
    split: Text = SPLIT
    group: Text | None = None
    slices: Text | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.1
    split_seed: Seed = 0
    context: Length = 128
    root: Text | None = None
    size: Side = 32
    channels: Literal[1, 3] = 3
    shift: CountOrZero = 0
    crop: Rate = 0.0
    flip: bool = False
    memory_limit: CountOrZero = 2048
    workers: Workers = 2
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256
    _test_rows: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def spec(self) -> DataSpec:
        """What a row is; without the file, the number of classes is not known."""
        return spec_of(self)

    def missing(self) -> str | None:
        """Returns that there is no such file and what to do about it, or None."""
        if self.files:
            return None
        return f"no file {Path(self.path).expanduser().absolute()}; set data.path=FILE.csv, a table, a row per sample"

    @property
    def files(self) -> list[Path]:
        """The files that `path` names."""
        return files_of(self.path)

    @property
    def read_files(self) -> list[Path]:
        """All files that `rows` depends on."""
        return self.files

    @cached_property
    def names(self) -> list[str]:
        """The columns of the first file; none without a file."""
        return column_names(self.files[0]) if self.files else []

    @property
    def reads(self) -> Reads:
        """What a model reads of a row."""
        return reads_of(self)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts that a model reads, or writes. Raises UserError where it would read nothing."""
        if self.reads in ("image", "numbers"):
            return ()
        if self.text is None:
            raise UserError("data.text=null: a row has nothing to read; name data.text, data.image or data.columns")
        return (self.text,) if self.pair is None else (self.text, self.pair)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels, sorted; none where a caption or numbers are predicted. Raises UserError as `rows` does."""
        if self.target or self.reads == "caption":
            return ()
        return self._values_of(self.label or LABEL)

    @cached_property
    def slice_names(self) -> tuple[str, ...]:
        """The values of the column `slices`, sorted; none without one. Raises UserError for too many."""
        names = () if self.slices is None else self._values_of(self.slices)
        if len(names) > MOST_SLICES:
            raise UserError(f"data.slices={self.slices}: the column has {len(names)} values, more than {MOST_SLICES}")
        return names

    def _values_of(self, column: str) -> tuple[str, ...]:
        return tuple(sorted(self.rows.table[column].unique().to_pylist()))

    @property
    def named_columns(self) -> dict[str, str]:
        """The columns that are read, by the option that names them."""
        return named_columns(self)

    def read(self, columns: dict[str, str], kinds: Kinds) -> Rows:
        """Reads the columns of all files, as `read_rows` does."""
        return read_rows(self.files, columns, kinds)

    @cached_property
    def rows(self) -> Rows:
        """The tables, checked. Raises UserError naming every row that cannot be used, with its line."""
        return read_once(self, "rows", self.read_files, lambda: checked_rows(self))

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Reads and encodes the splits; fits a tokenizer of texts on those of training unless its state was loaded.

        Raises UserError for a class without a training row, and for a group that the file puts in several splits. Warns
        of rows that several splits share.
        """
        splits, self._fingerprint, self._test_rows = load_rows(self, tokenizer)
        forget()  # what was kept is in this module
        return splits

    def test_texts(self, samples: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
        """Returns the text of each sample, both of a pair, cut where its tokens are."""
        assert self._test_rows is not None, "test_texts() is valid after load()"
        return read_texts(self, [int(self._test_rows[sample]) for sample in samples], tokenizer)

    def read_source(self, path: str) -> Tensor:
        """Returns an image file as float32 (1, C, size, size) from -1 (black) to 1, for captions."""
        return read_picture(Path(path).expanduser(), channels=self.channels, size=self.size)
