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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

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
from blockyard.data._decode import read_picture
from blockyard.data._loaded import LoadedData
from blockyard.data._read_once import forget, read_once
from blockyard.data._split import Fraction
from blockyard.data._table_checks import checked_rows
from blockyard.data._table_columns import Kinds, Rows, read_rows
from blockyard.data._table_file import column_names, files_of
from blockyard.data._table_load import load_rows
from blockyard.data._table_spec import LABEL, SPLIT, TEXT, Reads, check_options, named_columns, reads_of, spec_of
from blockyard.data._table_texts import read_texts
from blockyard.errors import UserError

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
