"""Looks at the columns of a table: which of them a model reads, and which one it predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.ask.columns import TableColumn, named_target
from blockyard.ask.subject import FileContents, Setting, data_setting, molecules, path_setting
from blockyard.data.files.split_names import SPLIT
from blockyard.data.files.tables import column_names, read_file
from blockyard.errors import UserError, fold

FEWEST_ROWS = 60
LONGEST_LANGUAGE = 3  # letters of the name of a language: en, deu
SMALL = 2_000  # rows, below which the test split is a larger part of them
SMALL_TEST = 0.3
LISTED_CLASSES = 4
TARGETS = ("data.label", "data.target")  # options that name what is predicted
SMILES = "smiles"


@dataclass(frozen=True)
class _Table:
    """A table that is looked at. columns: without the one of the splits; typed: keys of the user's overrides"""

    path: Path
    columns: Sequence[TableColumn]
    num_rows: int
    typed: Mapping[str, str]
    settings: list[Setting] = field(default_factory=list)

    def set(self, key: str, value: Any, reason: str) -> None:
        """Add a setting, unless the user typed it."""
        if key not in self.typed:
            self.settings.append(Setting(key, value, reason))

    def first(self, role: str) -> TableColumn | None:
        """Return the first column with a role, a property of `TableColumn`."""
        return next((column for column in self.columns if getattr(column, role)), None)

    @property
    def names(self) -> str:
        """The names of the columns, for messages."""
        return ", ".join(column.name for column in self.columns)

    @property
    def typed_targets(self) -> list[TableColumn]:
        """The columns that the user typed as targets. Raises UserError for one that is not there."""
        by_name = {column.name: column for column in self.columns}
        targets = []
        for key in TARGETS:
            for name in self.typed.get(key, "").strip("[]").split(","):
                name = name.strip("'\" ")
                if name in ("", "null"):
                    continue
                if name not in by_name:
                    raise UserError(f"{key}={name}: {self.path} has no such column (columns: {self.names})")
                targets.append(by_name[name])
        return targets

    @property
    def target(self) -> TableColumn | None:
        """The column that is predicted: as the user typed it, by its name, or the last one with classes."""
        if self.typed_targets:
            return self.typed_targets[0]
        named = named_target(self.columns)
        if named is not None:
            return named
        return next((column for column in reversed(self.columns) if column.classes and len(column.distinct) > 1), None)

    @property
    def is_series(self) -> bool:
        """True for a column of times, and then numbers that no name calls a target."""
        if self.typed_targets or named_target(self.columns) is not None or len(self.columns) < 2:
            return False
        times, *others = self.columns
        return times.times and all(column.numeric for column in others)


def columns_of(path: Path, typed: Mapping[str, str]) -> FileContents:
    """Return what a table holds, by the roles of its columns. Raises UserError where none can be a target."""
    table = _read(path, typed)
    names = [column.name for column in table.columns]
    smiles = [name for name in names if name.lower() == SMILES]
    if smiles and path.suffix == ".csv":
        reason = f"the column {smiles[0]} holds molecules"
        return molecules(path, f"a table of {table.num_rows:,} molecules", reason, column_names(path))
    if sounds := table.first("sounds"):
        return _speech(table, sounds)
    if table.is_series:
        read = (
            data_setting("series_file", f"the column {names[0]} holds times, the others numbers"),
            path_setting(path),
            Setting("data.time", names[0], "rows are in the order of this column"),
        )
        return FileContents(f"a time series of {table.num_rows:,} steps", read)
    table.settings.extend([data_setting("table", f"{path.name} is a table, a row for each sample"), path_setting(path)])
    if SPLIT not in column_names(path) and table.num_rows < SMALL:
        table.set("data.test_fraction", SMALL_TEST, f"of {table.num_rows:,} rows the usual tenth is too small a test")
    if images := table.first("images"):
        return _images(table, images)
    texts = [column for column in table.columns if column.texts and column is not table.target]
    if "data.text" in typed or ("data.columns" not in typed and texts):
        return _texts(table, texts)
    return _numbers(table)


def _read(path: Path, typed: Mapping[str, str]) -> _Table:
    """Read a table. Raises UserError for one with too few rows."""
    names = column_names(path)
    cells = read_file(path, {f"column {number}": name for number, name in enumerate(names, start=1)}).table
    num_rows = len(cells)
    if num_rows < FEWEST_ROWS:
        raise UserError(
            f"{path} has {num_rows} rows, of which a test split would have {num_rows // 10}; a comparison needs "
            f"{FEWEST_ROWS} rows or more, and hundreds to see a small difference"
        )
    columns = []
    for name in names:
        if name == typed.get("data.split", SPLIT):
            continue
        filled = [str(cell) for cell in cells[name].to_pylist() if cell is not None and str(cell).strip()]
        column = TableColumn(name, filled, num_rows)
        if column.with_comma and not column.several_labels:
            raise UserError(
                f"{path}: the numbers of the column {name} have commas, as in {column.with_comma!r}; write 1234.5 for "
                "a number, as in pandas.read_csv(FILE, decimal=',').to_csv(OTHER, index=False), or with thousands=','"
            )
        columns.append(column)
    return _Table(path, columns, num_rows, typed)


def _speech(table: _Table, sounds: TableColumn) -> FileContents:
    text = table.first("texts")
    if text is None:
        raise UserError(f"{table.path}: the column {sounds.name} names sounds, and no other column holds their texts")
    settings = (
        data_setting("speech", f"the column {sounds.name} names sounds"),
        path_setting(table.path),
        Setting("data.file", sounds.name, "it names the sound files"),
        Setting("data.text", text.name, "it holds texts"),
    )
    return FileContents(f"{table.num_rows:,} recordings with their texts", settings)


def _images(table: _Table, images: TableColumn) -> FileContents:
    table.set("data.image", images.name, "its cells name image files")
    table.set("data.text", None, "the images alone are read")
    target = _set_target(table, table.target)
    return FileContents(f"{table.num_rows:,} images with {target}", tuple(table.settings))


def _texts(table: _Table, texts: Sequence[TableColumn]) -> FileContents:
    if _are_translations(table, texts):
        source, translated = texts
        read = (
            data_setting(
                "translation", "two columns of texts, called as languages are, or with nothing else to predict"
            ),
            path_setting(table.path),
            Setting("data.source", source.name, "the first column of texts"),
            Setting("data.target", translated.name, "the second one"),
        )
        return FileContents(f"{table.num_rows:,} pairs of texts, {source.name} and {translated.name}", read)
    if texts:
        longest = max(texts, key=lambda column: column.mean_length)
        reason = "the only column of texts" if len(texts) == 1 else "the column with the longest texts"
        table.set("data.text", longest.name, reason)
    sentence = _set_target(table, table.target)
    return FileContents(f"{table.num_rows:,} texts with {sentence}", tuple(table.settings))


def _are_translations(table: _Table, texts: Sequence[TableColumn]) -> bool:
    """Return whether a table has pairs of texts and no target."""
    if len(texts) != 2 or table.typed_targets or not table.path.name.endswith((".tsv", ".tsv.gz")):
        return False
    return table.target is None or all(len(column.name) <= LONGEST_LANGUAGE for column in texts)


def _numbers(table: _Table) -> FileContents:
    target = table.target
    numbers = [column for column in table.columns if column.numeric and not column.counted]
    candidates = [column for column in table.columns if column in numbers or column.classes]
    if named_target(table.columns) is None and not table.typed_targets and candidates:
        target = candidates[-1]  # tables of numbers have their target at the end
    targets = table.typed_targets
    if target is not None and not targets:
        targets = [target]
    read = [column.name for column in numbers if column not in targets]
    if not read and "data.columns" not in table.typed:
        raise UserError(
            f"{table.path} has no column of texts, images or numbers to learn from (columns: {table.names})"
        )
    left_out = []
    for column in table.columns:
        if column in numbers or column in targets:
            continue
        text = column.name
        if column.not_a_number:
            text = f"{text}, where {column.not_a_number!r} is not a number"
        left_out.append(text)
    reason = "the columns of numbers"
    if left_out:
        reason += f"; left out: {fold(left_out)}"
    table.set("data.columns", read, reason)
    sentence = _set_target(table, target)
    return FileContents(f"{table.num_rows:,} rows of {len(read)} numbers with {sentence}", tuple(table.settings))


def _set_target(table: _Table, target: TableColumn | None) -> str:
    """Add the setting of the target and return a few words about it. Raises UserError where none can be one."""
    if target is None:
        raise UserError(
            f"{table.path}: no column looks like a target (columns: {table.names}); name it, as data.label=COLUMN for "
            "classes or data.target=[COLUMN] for numbers"
        )
    if len(target.distinct) < 2:
        cell = next(iter(target.distinct), "")
        raise UserError(
            f"{table.path}: every row has the {target.name} {cell!r}; a target needs two different values or more, or "
            "another column, data.label=COLUMN"
        )
    if len(table.typed_targets) > 1:
        names = ", ".join(column.name for column in table.typed_targets)
        return f"several targets each: {names}"
    if target.several_labels and "data.label" not in table.typed:
        raise UserError(
            f"{table.path}: cells of {target.name} have several labels, as in {target.several_labels!r}; write a "
            f"column of 0 and 1 for each label, data.label=[LABEL,LABEL], or data.label={target.name} takes each "
            "combination for a class"
        )
    is_number = target.numeric and not target.classes
    if "data.target" in table.typed or ("data.label" not in table.typed and is_number):
        table.set("data.target", [target.name], "it holds numbers, which are predicted as they are")
        return f"a number each, {target.name}"
    counts = Counter(target.cells)
    most_frequent = [f"{name} {count:,}" for name, count in counts.most_common(LISTED_CLASSES)]
    more = ""
    if len(counts) > LISTED_CLASSES:
        more = f" and {len(counts) - LISTED_CLASSES} more"
    listed = f"{', '.join(most_frequent)}{more}"
    table.set("data.label", target.name, f"{len(counts)} classes: {listed}")
    return f"a class each, {target.name}: {listed}"
