"""A table of your own: one text and one label per row.

Source: the layout of the GLUE tasks, Wang et al. 2018 (arXiv 1804.07461)
Reference: pandas.read_csv; scikit-learn's train_test_split with stratify

    text                     label   split
    Re: lunch on Friday?     ham     train        a CSV or TSV file with a header, or JSON Lines; also .gz
    YOU HAVE WON             spam    test

Classes are the labels as they are written, sorted. Rows without a split are drawn by `split_seed`, of each class the
same share. A text of more than `context` tokens is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockyard.contracts import BatchSize, DataSpec, Length, Seed, Splits, Text, TextTokenizer, Tokenizer
from blockyard.data._labelled_texts import LabelledSplit, LabelledTexts, encoded
from blockyard.data._loaded import LoadedData
from blockyard.data._pair_file import NAMES
from blockyard.data._split import Fraction, check_fractions, sha256
from blockyard.data._table_file import check_rows, column_names, lines_where, read_table
from blockyard.data._table_splits import split_rows, warn_of_duplicates
from blockyard.errors import UserError

if TYPE_CHECKING:
    import pandas

SPLIT = "split"
MOST_SLICES = 100


@dataclass(kw_only=True, eq=False)
class Table(LoadedData):
    """Texts with a class each, read from a file and encoded once.

    Options:
        path: a .csv, .tsv or .jsonl file, plain or gzipped, with a header
        text: the column of the texts
        label: the column of the classes
        split: the column that says train, val or test; without a column of the name split, all rows are drawn
        slices: a column by whose values the evaluation is reported too, such as the label; null means none
        validation_fraction: share of all rows that is the validation split, if the file names none
        test_fraction: share of all rows that is the test split, if the file names none
        split_seed: seed of the drawn splits; independent of the run's seed, so that all seeds share them
        context: tokens of a text that a model reads
        batch_size: texts in a training step, over all processes
        eval_batch_size: texts in a validation or test step, over all processes
    """

    path: Text = "data/table.csv"
    text: Text = "text"
    label: Text = "label"
    split: Text = SPLIT
    slices: Text | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.1
    split_seed: Seed = 0
    context: Length = 128
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256

    def __post_init__(self) -> None:
        check_fractions(self.validation_fraction, self.test_fraction)

    @property
    def spec(self) -> DataSpec:
        """Sequences of different lengths with a class each; without the file, the number of classes is not known."""
        there = self.missing() is None
        return DataSpec(
            "text",
            (self.context,),
            variable=True,
            target="class",
            classes=len(self.class_names) if there else None,
            class_names=self.class_names if there else (),
            slices=self.slice_names if there else (),
        )

    def missing(self) -> str | None:
        """Returns that there is no such file and what to do about it, or None."""
        if self._path.is_file():
            return None
        return f"no file {self._path.absolute()}; set data.path=FILE.csv, a row per text with its label"

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels, sorted. Raises UserError as `rows` does."""
        return tuple(sorted(set(self.rows[self.label])))

    @cached_property
    def slice_names(self) -> tuple[str, ...]:
        """The values of the column `slices`, sorted; none without one. Raises UserError for too many."""
        names = () if self.slices is None else tuple(sorted(set(self.rows[self.slices])))
        if len(names) > MOST_SLICES:
            raise UserError(f"data.slices={self.slices}: the column has {len(names)} values, more than {MOST_SLICES}")
        return names

    @cached_property
    def rows(self) -> pandas.DataFrame:
        """The table, checked. Raises UserError naming every row that cannot be used, with its line."""
        has_split = self.split != SPLIT or self.split in column_names(self._path)
        columns = {"data.text": self.text, "data.label": self.label}
        columns |= {"data.split": self.split} if has_split else {}
        columns |= {"data.slices": self.slices} if self.slices is not None else {}
        table = read_table(self._path, columns)
        blank = {name: table[name].isna() | (table[name].str.strip() == "") for name in columns.values()}
        problems = {f"no {name}": lines_where(mask) for name, mask in blank.items()}
        if has_split:
            unknown = ~table[self.split].isin(NAMES.keys()) & ~blank[self.split]
            problems[f"{self.split} is none of {', '.join(NAMES)}"] = lines_where(unknown)
        check_rows(self._path, problems)
        names = sorted(set(table[self.label]))
        if len(names) < 2:
            raise UserError(f"{self._path}: every row has the {self.label} {names[0]!r}; a class needs another one")
        return table

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Encodes the splits; fits the tokenizer on the training texts unless its state was loaded.

        Raises UserError for a class without a training text. Warns of texts that occur in several splits.
        """
        if not isinstance(tokenizer, TextTokenizer):
            raise ValueError(f"text data needs a text tokenizer, not {type(tokenizer).__name__}")
        target = self._numbers(self.label, self.class_names)
        assigned = [NAMES[name] for name in self.rows[self.split]] if self.split in self.rows else None
        fractions = (self.validation_fraction, self.test_fraction)
        indices = split_rows(self._path, target, assigned, fractions, self.split_seed)
        self._check_classes(target, indices[0])
        indices = [part[self.kept(number, len(part), target[part])] for number, part in enumerate(indices)]
        texts = self.rows[self.text].tolist()
        parts = [[texts[i] for i in index.tolist()] for index in indices]
        warn_of_duplicates(self._path, parts)
        labels = self.rows[self.label].tolist()
        self._fingerprint = sha256(
            text
            for index in indices
            for text in (str(len(index)), *(f"{labels[i]} {texts[i]}" for i in index.tolist()))
        )
        if not tokenizer.state():
            tokenizer.fit(parts[0])
        slices = None if self.slices is None else self._numbers(self.slices, self.slice_names)
        train, *rest = (
            self._encoded(part, target[index], None if slices is None else slices[index], tokenizer)
            for part, index in zip(parts, indices, strict=True)
        )
        classes = len(self.class_names)
        return Splits(*(LabelledSplit(part, tokenizer, train, classes, variable=True) for part in (train, *rest)))

    def _encoded(
        self, texts: list[str], target: Tensor, slices: Tensor | None, tokenizer: TextTokenizer
    ) -> LabelledTexts:
        stream, tokens = encoded(texts, tokenizer)
        start = tokens.cumsum(0) - tokens
        return LabelledTexts(stream, start, tokens.clamp_max(self.context), target, slices)

    def _numbers(self, column: str, names: tuple[str, ...]) -> Tensor:
        """The values of a column as their index in `names`, (rows,) int64."""
        number = {name: index for index, name in enumerate(names)}
        return torch.tensor([number[value] for value in self.rows[column]])

    def _check_classes(self, target: Tensor, train: Tensor) -> None:
        lines = torch.tensor(self.rows.index.to_list())
        trained = set(target[train].tolist())
        absent = {
            f"no training row has the {self.label} {name!r}": lines[target == number].tolist()
            for number, name in enumerate(self.class_names)
            if number not in trained
        }
        check_rows(self._path, absent)

    @property
    def _path(self) -> Path:
        return Path(self.path).expanduser()
