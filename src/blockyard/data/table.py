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

Classes are the labels, sorted; 1 and 1.0 are one where all are whole numbers. A column of the default name that a file
lacks is not read. Rows without a split are drawn by `split_seed`, of each class the same share; rows with the same
inputs, or of one group, stay together. A split without a label is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    CountOrZero,
    DataSpec,
    FittingValue,
    ImageTokenizer,
    InputReader,
    Length,
    NewInputs,
    Side,
    Splits,
    Text,
    TextTokenizer,
    Tokenizer,
    Workers,
)
from blockyard.data.files.class_names import warn_of_names
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import read_picture
from blockyard.data.files.split_names import SPLIT, SPLIT_NAMES, SPLIT_NUMBERS, split_number
from blockyard.data.files.table_rows import Kinds, TableRows, read_rows
from blockyard.data.files.tables import column_names, files_of
from blockyard.data.rows.captions import CaptionRows
from blockyard.data.rows.images import ImageColumn, ImageRows
from blockyard.data.rows.kind import AssignedRows, Reads, RowKind
from blockyard.data.rows.numbers import NumberRows
from blockyard.data.rows.questions import QuestionRows
from blockyard.data.rows.texts import TextRows, shown_texts
from blockyard.data.splits.augment import AugmentOptions
from blockyard.data.splits.fitting import equally_spaced_rows, fitting_context
from blockyard.data.splits.loaded import LoadedData, forget, read_once
from blockyard.data.splits.row_splits import split_rows, together, warn_of_duplicates
from blockyard.data.splits.split import DrawnSplits, Sliced, with_labels, with_values
from blockyard.errors import SHOWN, UserError

log = logging.getLogger("blockyard")
MOST_CLASSES = 1000
_NAMES = ("data.label", "data.group", "data.slices")  # whose columns hold names
_UNLABELLED = ("-1", "-1.0", -1)  # labels of a row without one, in data sets of classes with numbers
MOST_SLICES = 100
TEXT, LABEL = "text", "label"  # like SPLIT, columns that are not read where the file lacks them


@dataclass(kw_only=True, eq=False)
class Table(AugmentOptions, DrawnSplits, LoadedData):
    """Rows of tables, read and encoded once.

    Options:
        path: a .csv, .tsv, .jsonl, .parquet or .arrow file, a folder of them, or a glob such as data/part-*.csv
        text: the column of the texts; null reads none
        label: the column of the classes; several columns of 0 and 1, a label each, for objective=multilabel; null reads
            none
        pair: the column of a second text, as in entailment; null reads none
        image: the column of the images: paths, or the bytes of image files; null reads none
        columns: the columns of numbers that a model reads
        target: the columns of real values that are predicted, instead of a class
        split: the column that says train, val or test; without a column of the name split, all rows are drawn
        group: a column, such as the patient or the author, whose rows never cross splits
        slices: a column by whose values the evaluation is reported too, such as the label; null means none
        validation_fraction: share of all rows that is the validation split, if the file names none
        test_fraction: share of all rows that is the test split, if the file names none
        context: tokens of a text that a model reads, those of both texts of a pair together; further ones are cut
        root: folder that the paths of images are relative to; null is that of the table
        size: side of an image in pixels after resizing
        channels: 3 for color images, 1 for grayscale
        memory_limit: megabytes of pixels up to which all images are decoded into memory
        workers: threads that decode images
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
    """

    incidental = frozenset({"eval_batch_size", "workers"})

    path: Text = "data/table.csv"
    text: Text | None = TEXT
    label: Text | tuple[Text, ...] | None = LABEL
    pair: Text | None = None
    image: Text | None = None
    columns: tuple[Text, ...] = ()
    target: tuple[Text, ...] = ()
    split: Text = SPLIT
    group: Text | None = None
    slices: Text | None = None
    context: Length = 128
    root: Text | None = None
    size: Side = 32
    channels: Literal[1, 3] = 3
    memory_limit: CountOrZero = 2048
    workers: Workers = 2
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256
    _test_rows: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        AugmentOptions.__post_init__(self)
        DrawnSplits.__post_init__(self)
        if self.columns and (self.image or self.pair):
            raise ValueError("data.columns is for numbers alone; use data.image=null and data.pair=null with it")
        if self.image and self.pair:
            raise ValueError(f"data.pair={self.pair} is a second text; with data.image, use data.pair=null")
        if self.label == () or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"data.label={list(self.labels)}: expected a column, or several different ones")
        if self.target and self.label not in (None, LABEL):
            raise ValueError(f"data.target and data.label={self.label} both say what is predicted; one must be null")

    @property
    def kind(self) -> RowKind:
        """Return the kind of row, by the columns that are named and present."""
        text = self.text if self.image is None or self._is_read(self.text, TEXT) else None
        if self.columns or self.image is None or text is not None:
            self.refuse_without_images("no image alone", "use data.image=COLUMN data.text=null, or leave it out")
        if self.columns:
            return NumberRows(self.columns)
        if self.image is None:
            return TextRows(text, self.pair, self.context)
        image = ImageColumn(self.image, self.root, self.channels, self.size, self.workers)
        if text is None:
            return ImageRows(image, self.augmentation(self.channels), self.memory_limit)
        label = self.label if isinstance(self.label, str) else None
        labelled = bool(self.target or self.labels) or self._is_read(label, LABEL)
        return (QuestionRows if labelled else CaptionRows)(text, image, self.context)

    def _is_read(self, column: str | None, default: str) -> bool:
        """Return whether a column is read: one of the default name is where the file has it."""
        return column is not None and (column != default or default in self.names)

    @property
    def spec(self) -> DataSpec:
        """The specification of a row; without the file, the number of classes is not known."""
        kind = self.kind
        if kind.writes:
            return kind.spec()
        there = self.missing() is None
        data_spec = replace(kind.spec(), slices=self.slice_names if there else ())
        if self.target:
            return replace(data_spec, target="values", values=(len(self.target),))
        if self.labels:
            return replace(data_spec, target="labels", classes=len(self.labels), class_names=self.labels)
        names = self.class_names if there else ()
        return replace(data_spec, target="class", classes=len(names) or None, class_names=names)

    def missing(self) -> str | None:
        """Return a message that names the missing file and the remedy, or None."""
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
        """The name of the kind of row."""
        return self.kind.reads

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts that a model reads, or writes. Raises UserError where it would read nothing."""
        return self.kind.texts

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of labels, where several are predicted."""
        return self.label if isinstance(self.label, tuple) else ()

    @property
    def label_column(self) -> str:
        """The column of the classes, where classes are predicted."""
        return self.label if isinstance(self.label, str) else LABEL

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels, sorted; none where a caption or numbers are predicted. Raises UserError as `rows` does."""
        if self.target or self.labels or self.kind.writes:
            return ()
        return self._values_of(self.label_column)

    def fitting_contents(self) -> list[FittingValue]:
        """Return the columns of numbers, for a table without texts and images."""
        reads_texts = self.text != TEXT or TEXT in self.names or self.pair is not None
        if not self.files or self.columns or self.image is not None or reads_texts:
            return []
        others = {*self.labels, self.label_column, *self.target, self.split, self.group, self.slices}
        cells = read_rows(self.files[:1], {f"data.columns={name}": name for name in self.names}, {})
        columns = []
        for name in self.names:
            if name not in others and all(map(_is_number, cells.texts(name, range(min(len(cells), SHOWN))))):
                columns.append(name)
        if not columns:
            return []
        reason = f"{Path(self.path).name} has no column {TEXT}, and these of numbers"
        return [FittingValue("data.columns", columns, reason)]

    def fitting(self, length: Callable[[str], int], source_length: Callable[[str], int]) -> list[FittingValue]:
        """Return a context that holds most texts of a sample of the rows."""
        if self.missing() is not None:
            return []
        measured = equally_spaced_rows(len(self.rows))
        columns = [self.rows.texts(column, measured) for column in self.kind.texts]
        lengths = []
        for texts in zip(*columns, strict=True):
            lengths.append(sum(map(length, texts)) + len(texts) - 1)  # with the start token between two
        return fitting_context("data.context", lengths, self.kind.things)

    @cached_property
    def slice_names(self) -> tuple[str, ...]:
        """The values of the column `slices`, sorted; none without one. Raises UserError for too many."""
        names = () if self.slices is None else self._values_of(self.slices)
        if len(names) > MOST_SLICES:
            raise UserError(f"data.slices={self.slices}: the column has {len(names)} values, more than {MOST_SLICES}")
        return names

    def _values_of(self, column: str) -> tuple[str, ...]:
        return tuple(sorted(map(_as_text, self.rows.table[column].unique().to_pylist())))

    @property
    def named_columns(self) -> dict[str, str]:
        """The columns that are read, by the option that names them."""
        kind = self.kind
        columns = kind.columns()
        columns |= {f"data.target[{number}]": name for number, name in enumerate(self.target)}
        columns |= {f"data.label[{number}]": name for number, name in enumerate(self.labels)}
        if not self.target and not self.labels and not kind.writes:
            if self.label is None:
                raise UserError(
                    "data.label=null leaves nothing to predict; name data.label=COLUMN or data.target=[COLUMN]"
                )
            columns["data.label"] = self.label_column
        if self.split != SPLIT or SPLIT in self.names:
            columns["data.split"] = self.split
        if self.group is not None:
            columns["data.group"] = self.group
        if self.slices is not None:
            columns["data.slices"] = self.slices
        return columns

    def read(self, columns: dict[str, str], kinds: Kinds) -> TableRows:
        """Read the columns of all files, as `read_rows` does."""
        return read_rows(self.files, columns, kinds)

    @cached_property
    def rows(self) -> TableRows:
        """The tables, checked. Raises UserError naming every row that cannot be used, with its line."""
        return read_once(self, "rows", self.read_files, self._checked_rows)

    def _checked_rows(self) -> TableRows:
        kind, named_columns = self.kind, self.named_columns
        rows = self.read(named_columns, dict.fromkeys((*self.target, *self.labels), "number") | kind.cell_types())
        if "data.split" in named_columns and not kind.writes:
            rows = self._without_unlabelled(rows)
        problems = {}
        for key, name in named_columns.items():
            # Of several columns of numbers, a row may lack some.
            if not key.startswith(("data.columns", "data.target", "data.label[")):
                problems[f"no {name}"] = rows.blank(name)
        if self.target:
            missing = np.isnan(rows.numbers(self.target))
            problems[f"no {' nor '.join(self.target)}, which is the target"] = missing.all(1)
        if self.labels:
            values = rows.numbers(self.labels)
            problems[f"no {' nor '.join(self.labels)}, which are the labels"] = np.isnan(values).all(1)
            wrong = ~(np.isnan(values) | (values == 0) | (values == 1))
            problems |= {f"{name} is neither 0 nor 1": wrong[:, i] for i, name in enumerate(self.labels)}
        problems |= kind.problems(rows)
        if "data.split" in named_columns:
            unknown = np.array([split_number(str(name)) is None for name in rows.texts(self.split)], dtype=bool)
            problems[f"{self.split} is none of {SPLIT_NAMES}"] = unknown & ~rows.blank(self.split)
        rows.refuse(problems)
        rows = rows.with_plain_names([named_columns[key] for key in _NAMES if key in named_columns])
        if "data.label" in named_columns:
            self._check_labels(rows)
        return rows

    def _without_unlabelled(self, rows: TableRows) -> TableRows:
        """Return the rows without splits that have no label at all, and log these splits.

        A label is missing, or -1 where no training row has it, as in the test splits of GLUE.
        """
        predicted = self.labels or self.target
        if predicted:
            values = rows.numbers(predicted)
            missing = np.isnan(values).all(1)
            negative = (values == -1).all(1)
        else:
            missing = rows.blank(self.label_column)
            negative = np.array([cell in _UNLABELLED for cell in rows.table[self.label_column].to_pylist()])
        splits = np.array(rows.texts(self.split), dtype=object).astype(str)
        training = np.array([split_number(name) == 0 for name in splits], dtype=bool)
        unlabelled = missing if negative[training].any() else missing | negative
        kept = np.ones(len(rows), dtype=bool)
        for name in dict.fromkeys(splits[~training & ~rows.blank(self.split)].tolist()):
            in_split = splits == name
            if unlabelled[in_split].all():
                count = int(in_split.sum())
                log.warning("%s: the %d rows of the split %s have no label and are left out", self.path, count, name)
                kept &= ~in_split
        return rows if kept.all() else rows.select(kept)

    def _check_labels(self, rows: TableRows) -> None:
        name = self.label_column
        cells = rows.table[name].value_counts().to_pylist()
        counts = {_as_text(cell["values"]): int(cell["counts"]) for cell in cells}
        if len(counts) < 2:
            raise UserError(f"{self.path}: every row has the {name} {next(iter(counts))!r}; a class needs another one")
        if len(counts) > MOST_CLASSES:
            raise UserError(
                f"data.label={name}: {self.path} has {len(counts):,} different ones, more than {MOST_CLASSES:,} "
                f"classes; for real values use data.target=[{name}]"
            )
        warn_of_names(self.path, dict(sorted(counts.items())))

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read and encode the splits; fit a tokenizer of texts on the training texts unless its state was loaded.

        Raises UserError for a class without a training row, and for a group that the file puts in several splits. Warns
        of rows that several splits share.
        """
        kind, assigned = self.kind, self._assigned()
        splits, fingerprint = kind.splits(assigned, tokenizer)
        values, slices, parts = assigned.values, assigned.slices, assigned.parts
        # Images that are written have no other target than their own tokens.
        if values is not None and not isinstance(tokenizer, ImageTokenizer):
            give = with_labels if self.labels else with_values
            splits = give(splits, [values[part] for part in parts], self.labels or self.target)
        if slices is not None and not kind.keeps_slices:
            splits = Splits(*(Sliced(split, slices[part]) for split, part in zip(splits, parts, strict=True)))
        if values is not None:
            fingerprint = sha256([fingerprint, *(values[part] for part in parts)])
        self._fingerprint = fingerprint
        self._test_rows = parts[2]
        forget()  # this module holds the rows, and nobody else needs them again
        return splits

    def _assigned(self) -> AssignedRows:
        """Draw or read the splits, and check them."""
        rows, kind, classes = self.rows, self.kind, self.class_names
        predicted = self.labels or self.target
        keys = kind.keys(rows)
        target = torch.zeros(len(rows), dtype=torch.int64)
        if classes:
            target = _indices(rows, self.label_column, classes)
        named = None
        if "data.split" in self.named_columns:
            named = [SPLIT_NUMBERS[str(name).lower()] for name in rows.texts(self.split)]
        groups = None if self.group is None else rows.texts(self.group)
        units, repeated = together(keys, groups)
        if named is not None and groups is not None:
            self._refuse_crossing(rows, groups, named)
        if repeated and named is None:
            log.warning(
                "%s: %d of %d rows repeat the inputs of an earlier one; they stay in its split",
                self.path,
                repeated,
                len(rows),
            )
        fractions = (self.validation_fraction, self.test_fraction)
        parts = split_rows(self.path, target, named, fractions, self.split_seed, units)
        if classes:
            self._check_trained(rows, target, parts[0])
        parts = [part[self.kept(number, len(part), target[part])] for number, part in enumerate(parts)]
        warn_of_duplicates(self.path, [[keys[i] for i in part.tolist()] for part in parts], kind.things)
        return AssignedRows(
            path=self.path,
            rows=rows,
            spec=self.spec,
            parts=parts,
            label=self.label_column,
            target=target,
            classes=None if predicted else len(classes),
            values=torch.from_numpy(rows.numbers(predicted)) if predicted else None,
            slices=None if self.slices is None else _indices(rows, self.slices, self.slice_names),
        )

    def _check_trained(self, rows: TableRows, target: Tensor, train: Tensor) -> None:
        """Raise UserError naming the rows of classes that no training row has."""
        trained = np.isin(target.numpy(), target[train].numpy())
        problems = {}
        for number, name in enumerate(self.class_names):
            mask = (target == number).numpy() & ~trained
            problems[f"no training row has the {self.label_column} {name!r}"] = mask
        rows.refuse(problems)

    def _refuse_crossing(self, rows: TableRows, groups: Sequence[str], named: Sequence[int]) -> None:
        """Raise UserError naming the rows of groups that the file puts in more than one split."""
        first: dict[str, int] = {}
        crossing = set()
        for group, part in zip(groups, named, strict=True):
            if first.setdefault(group, part) != part:
                crossing.add(group)
        mask = np.array([group in crossing for group in groups])
        some = ", ".join(sorted(crossing)[:5])
        rows.refuse({f"{len(crossing)} of the {self.group} are in several splits, such as {some}": mask})

    def test_texts(self, samples: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
        """Return the text of each sample, both of a pair, cut where its tokens are."""
        assert self._test_rows is not None, "test_texts() is valid after load()"
        rows = [int(self._test_rows[sample]) for sample in samples]
        return shown_texts(self.rows, self.texts, rows, tokenizer, self.context)

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Read new rows from tables with the same columns, and texts and images from files of their own."""
        return self.kind.read_new(inputs, reader)

    def read_source(self, path: str) -> Tensor:
        """Return an image file as float32 (1, C, size, size) from -1 (black) to 1, for captions."""
        return read_picture(Path(path).expanduser(), channels=self.channels, size=self.size)


def _indices(rows: TableRows, column: str, names: Sequence[str]) -> Tensor:
    """Return the cells of a column as their index in `names`, (rows,) int64."""
    numbers = {name: number for number, name in enumerate(names)}
    return torch.tensor([numbers[_as_text(cell)] for cell in rows.table[column].to_pylist()], dtype=torch.int64)


def _is_number(cell: str | None) -> bool:
    """Return whether a cell is empty or a number."""
    if cell is None or not cell.strip():
        return True
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _as_text(cell: Any) -> str:
    """Return a cell as a name. A column that is a feature too is read as numbers, and 1.0 is called 1."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
