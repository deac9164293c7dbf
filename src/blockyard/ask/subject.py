"""The subject of a question: what a file or folder holds, and the options by which blockyard reads it."""

from __future__ import annotations

import tarfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blockyard.ask.columns import Column, named_target
from blockyard.ask.sample import Sample, is_large, sample_table
from blockyard.config.override_grammar import to_override
from blockyard.data.files.conll import SUFFIXES as TAGGED
from blockyard.data.files.images import SUFFIXES as IMAGES
from blockyard.data.files.split_names import SPLIT
from blockyard.data.files.tables import column_names, keys_of, kind_of, read_file
from blockyard.errors import UserError, first_line, fold

TABLES = ".csv, .tsv, .jsonl (also .gz), .parquet or .arrow"
READABLE = (
    f"a table ({TABLES}), an array (.npz), series with classes (.ts, .npz), running text (.txt), sentences with tags "
    "(.conll), molecules (.graphs.jsonl, or a .csv with a column smiles), a folder of images with a folder for each "
    "class, or of recordings with their texts"
)
FEWEST_ROWS = 60
LONGEST_LANGUAGE = 3  # letters of the name of a language: en, deu
SMALL = 2_000  # rows, below which the test split is a larger part of them
SMALL_TEST = 0.3
_SMILES = "smiles"
_GRAPHS = (".graphs.jsonl", ".graphs.jsonl.gz")
_NEXT_STEP = "name it, as data.label=COLUMN for classes or data.target=[COLUMN] for numbers"
_LISTED_CLASSES = 4
_TEXT_BYTES = 2**16  # of a file that are looked at to see whether it is text


@dataclass(frozen=True)
class Setting:
    """An override of the sweep file, and the reason for it."""

    key: str
    value: Any
    reason: str = ""

    @property
    def override(self) -> str:
        """The override as it is typed."""
        return to_override(self.key, self.value)


@dataclass(frozen=True)
class Subject:
    """What a file holds.

    summary: one line about it
    settings: by which it is read
    sample: where the file is too large to be read whole
    """

    summary: str
    settings: tuple[Setting, ...]
    sample: Sample | None = None


def look(path: Path, typed: Mapping[str, str], folder: Path) -> Subject:
    """Return what a file or folder holds. Raises UserError where it cannot be read, or has no target.

    typed: keys and values of the user's overrides, which are not chosen here
    folder: for the sample of a large table
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if "data" in typed:
        return Subject(f"read as data={typed['data']}", (_path(path),))
    if path.is_dir():
        return _folder(path, typed)
    name = path.name.lower()
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty")
    if name.endswith(_GRAPHS):
        return _molecules(path, "molecules as graphs", "its lines are graphs", keys_of(path))
    if kind_of(path):
        return _table(path, typed, folder)
    if path.suffix == ".npz":
        return _arrays(path)
    if path.suffix == ".ts":
        return Subject("series with a class each", (_data("series_table", "a .ts archive"), _path(path)))
    if path.suffix in TAGGED:
        settings = (_data("tagged_text", "a word and its tag in each line"), _path(path))
        return Subject("sentences with a tag for each word", settings)
    if zipfile.is_zipfile(path):
        return _zip(path)
    if tarfile.is_tarfile(path):
        return Subject("images in tar shards", (_data("webdataset", "a tar archive of images"), _path(path)))
    if not _is_text(path):
        raise UserError(f"{path} is none of the kinds that are read: {READABLE}")
    return Subject("running text", (_data("text_file", "running text, without rows"), _path(path)))


def _data(choice: str, reason: str) -> Setting:
    return Setting("data", choice, reason)


def _path(path: Path, key: str = "data.path") -> Setting:
    return Setting(key, str(path))


def _is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        content = file.read(_TEXT_BYTES)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start > len(content) - 4  # a character that goes on behind the part that was read
    return b"\0" not in content


def _folder(path: Path, typed: Mapping[str, str]) -> Subject:
    """Return what a folder holds, by its first files."""
    metadata = path / "metadata.jsonl"
    if metadata.is_file():
        settings = (_data("captions", "metadata.jsonl names images and their texts"), _path(path))
        return Subject("images with captions", settings)
    suffixes = Counter(file.suffix.lower() for file in path.rglob("*") if file.is_file())
    if any(suffix in IMAGES for suffix in suffixes):
        settings = (_data("image_folder", "a folder for each class"), _path(path, "data.root"))
        return Subject("images in a folder for each class", settings)
    if suffixes[".wav"] and suffixes[".txt"]:
        settings = (_data("speech", "sounds with a .txt each"), _path(path))
        return Subject("recordings with what is said", settings)
    tables = sorted(file for file in path.iterdir() if kind_of(file))
    if tables:
        subject = _columns_of(tables[0], typed)
        return replace(subject, settings=tuple(_path(path) if s.key == "data.path" else s for s in subject.settings))
    if suffixes[".tar"]:
        settings = (_data("webdataset", "tar archives of images"), _path(path))
        return Subject("images in tar shards", settings)
    if any(suffix in TAGGED for suffix in suffixes):
        settings = (_data("tagged_text", "a word and its tag in each line"), _path(path))
        return Subject("sentences with a tag for each word", settings)
    if suffixes[".txt"]:
        return Subject("text files", (_data("text_file", "text files"), _path(path)))
    raise UserError(f"{path} holds nothing that is read; a folder or file is one of: {READABLE}")


def _zip(path: Path) -> Subject:
    with zipfile.ZipFile(path) as archive:
        suffixes = {Path(name).suffix.lower() for name in archive.namelist()}
    if {".wav", ".txt"} <= suffixes:
        settings = (_data("speech", "sounds with a .txt each"), _path(path))
        return Subject("recordings with what is said", settings)
    raise UserError(f"{path} is an archive without sounds and their .txt; unpack it and name the folder")


def _molecules(path: Path, summary: str, reason: str, keys: Sequence[str]) -> Subject:
    """Return molecules, whose splits are drawn where no key or column names them."""
    read = [_data("molecules", reason), _path(path)]
    if SPLIT not in keys:
        read.append(Setting("data.split", None, f"splits are drawn: there is no {SPLIT}"))
    return Subject(summary, tuple(read))


def _arrays(path: Path) -> Subject:
    import numpy as np

    try:
        with np.load(path) as arrays:
            names = list(arrays.files)
            targets = arrays["y"] if "y" in names else None
            shape = arrays["x"].shape if "x" in names else ()
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from error
    if {"X_train", "y_train"} <= set(names):
        settings = (_data("series_table", "X_train and y_train, as in the archives of series"), _path(path))
        return Subject("series with a class each", settings)
    if targets is None or not shape:
        raise UserError(
            f"{path} has the arrays {fold(names)}; name the inputs x and the targets y, or X_train and y_train for "
            "series"
        )
    read = [_data("arrays", "x and y"), _path(path)]
    if SPLIT not in names and shape[0] < SMALL:
        reason = f"of {shape[0]:,} rows the usual tenth is too small a test"
        read.append(Setting("data.test_fraction", SMALL_TEST, reason))
    return Subject(f"{shape[0]:,} arrays of shape {tuple(shape[1:])}", tuple(read))


def _table(path: Path, typed: Mapping[str, str], folder: Path) -> Subject:
    if not is_large(path):
        return _columns_of(path, typed)
    sample = sample_table(path, folder)
    subject = _columns_of(sample.path, typed)
    return replace(subject, sample=sample)


@dataclass(frozen=True)
class _Table:
    """A table that is looked at. columns: without the one of the splits; typed: keys of the user's overrides"""

    path: Path
    columns: Sequence[Column]
    num_rows: int
    typed: Mapping[str, str]
    settings: list[Setting] = field(default_factory=list)

    def set(self, key: str, value: Any, reason: str) -> None:
        """Add a setting, unless the user typed it."""
        if key not in self.typed:
            self.settings.append(Setting(key, value, reason))

    def first(self, role: str) -> Column | None:
        """Return the first column with a role, a property of `Column`."""
        return next((column for column in self.columns if getattr(column, role)), None)

    @property
    def typed_targets(self) -> list[str]:
        """The options of the target that the user typed."""
        return [key for key in ("data.label", "data.target") if key in self.typed]

    @property
    def target(self) -> Column | None:
        """The column that is predicted, as the user typed it, by its name, or the last one with classes."""
        for key in self.typed_targets:
            name = self.typed[key].strip("[]'\" ")
            return next((column for column in self.columns if column.name == name), None)
        named = named_target(self.columns)
        if named is not None:
            return named
        return next((column for column in reversed(self.columns) if column.classes and len(column.distinct) > 1), None)


def _columns_of(path: Path, typed: Mapping[str, str]) -> Subject:
    """Return what a table holds, by the roles of its columns."""
    names = column_names(path)
    cells = read_file(path, {f"column {number}": name for number, name in enumerate(names, start=1)}).table
    columns = []
    for name in names:
        column = [str(cell) for cell in cells[name].to_pylist() if cell is not None and str(cell).strip()]
        if name != typed.get("data.split", SPLIT):
            columns.append(Column(name, column, len(cells)))
    if len(cells) < FEWEST_ROWS:
        raise UserError(
            f"{path} has {len(cells)} rows, of which a test split would have {len(cells) // 10}; a comparison needs "
            f"{FEWEST_ROWS} rows or more, and hundreds to see a small difference"
        )
    table = _Table(path, columns, len(cells), typed)
    smiles = next((column for column in columns if column.name.lower() == _SMILES), None)
    if smiles is not None and path.suffix == ".csv":
        reason = f"the column {smiles.name} holds molecules"
        return _molecules(path, f"a table of {len(cells):,} molecules", reason, names)
    if sounds := table.first("sounds"):
        return _speech(table, sounds)
    table.settings.extend([_data("table", f"{path.name} is a table, a row for each sample"), _path(path)])
    if SPLIT not in names and len(cells) < SMALL:
        table.set("data.test_fraction", SMALL_TEST, f"of {len(cells):,} rows the usual tenth is too small a test")
    if images := table.first("images"):
        return _images(table, images)
    times = columns[0]
    others_numeric = len(columns) > 1 and all(column.numeric for column in columns[1:])
    if times.times and others_numeric and named_target(columns) is None and not table.typed_targets:
        settings = (
            _data("series_file", f"the column {times.name} holds times, the others numbers"),
            _path(path),
            Setting("data.time", times.name, "rows are in the order of this column"),
        )
        return Subject(f"a time series of {len(cells):,} steps", settings)
    texts = [column for column in columns if column.texts and column is not table.target]
    if "data.text" in typed or ("data.columns" not in typed and texts):
        return _texts(table, texts)
    return _numbers(table)


def _speech(table: _Table, sounds: Column) -> Subject:
    text = table.first("texts")
    if text is None:
        raise UserError(f"{table.path}: the column {sounds.name} names sounds, and no other column holds their texts")
    settings = (
        _data("speech", f"the column {sounds.name} names sounds"),
        _path(table.path),
        Setting("data.file", sounds.name, "it names the sound files"),
        Setting("data.text", text.name, "it holds texts"),
    )
    return Subject(f"{table.num_rows:,} recordings with what is said", settings)


def _images(table: _Table, images: Column) -> Subject:
    table.set("data.image", images.name, "its cells name image files")
    table.set("data.text", None, "the images alone are read")
    target = _set_target(table)
    return Subject(f"{table.num_rows:,} images with {target}", tuple(table.settings))


def _texts(table: _Table, texts: Sequence[Column]) -> Subject:
    if _are_translations(table, texts):
        source, translated = texts
        read = (
            _data("translation", "two columns of texts, called as languages are, or with nothing else to predict"),
            _path(table.path),
            Setting("data.source", source.name, "the first column of texts"),
            Setting("data.target", translated.name, "the second one"),
        )
        return Subject(f"{table.num_rows:,} pairs of texts, {source.name} and {translated.name}", read)
    if texts:
        longest = max(texts, key=lambda column: column.mean_length)
        reason = "the only column of texts" if len(texts) == 1 else "the column with the longest texts"
        table.set("data.text", longest.name, reason)
    sentence = _set_target(table)
    return Subject(f"{table.num_rows:,} texts with {sentence}", tuple(table.settings))


def _are_translations(table: _Table, texts: Sequence[Column]) -> bool:
    """Return whether a table has pairs of texts and no target."""
    if len(texts) != 2 or table.typed_targets or not table.path.name.endswith((".tsv", ".tsv.gz")):
        return False
    return table.target is None or all(len(column.name) <= LONGEST_LANGUAGE for column in texts)


def _numbers(table: _Table) -> Subject:
    target = table.target
    numbers = [column for column in table.columns if column.numeric and not column.counted]
    candidates = [column for column in table.columns if column in numbers or column.classes]
    if named_target(table.columns) is None and not table.typed_targets and candidates:
        target = candidates[-1]  # tables of numbers have their target at the end
    read = [column.name for column in numbers if column is not target]
    if not read and "data.columns" not in table.typed:
        names = ", ".join(column.name for column in table.columns)
        raise UserError(f"{table.path} has no column of texts, images or numbers to learn from (columns: {names})")
    left_out = [column.name for column in table.columns if column not in numbers and column is not target]
    reason = "the columns of numbers"
    if left_out:
        reason += f"; left out: {fold(left_out)}"
    table.set("data.columns", read, reason)
    sentence = _set_target(table, target)
    return Subject(f"{table.num_rows:,} rows of {len(read)} numbers with {sentence}", tuple(table.settings))


def _set_target(table: _Table, target: Column | None = None) -> str:
    """Add the setting of the target and return a few words about it. Raises UserError where none can be one."""
    target = target or table.target
    if target is None and table.typed_targets:
        key = table.typed_targets[0]
        names = ", ".join(column.name for column in table.columns)
        raise UserError(f"{key}={table.typed[key]}: {table.path} has no such column (columns: {names})")
    if target is None:
        names = ", ".join(column.name for column in table.columns)
        raise UserError(f"{table.path}: no column looks like a target (columns: {names}); {_NEXT_STEP}")
    if len(target.distinct) < 2:
        cell = next(iter(target.distinct), "")
        raise UserError(
            f"{table.path}: every row has the {target.name} {cell!r}; a target needs two different values or more, or "
            "another column, data.label=COLUMN"
        )
    as_numbers = "data.target" in table.typed or (
        "data.label" not in table.typed and target.numeric and not target.classes
    )
    if as_numbers:
        table.set("data.target", [target.name], "it holds numbers, which are predicted as they are")
        return f"a number each, {target.name}"
    counts = Counter(target.cells)
    most_frequent = [f"{name} {count:,}" for name, count in counts.most_common(_LISTED_CLASSES)]
    more = ""
    if len(counts) > _LISTED_CLASSES:
        more = f" and {len(counts) - _LISTED_CLASSES} more"
    reason = f"{len(counts)} classes: {', '.join(most_frequent)}{more}"
    table.set("data.label", target.name, reason)
    return f"a class each, {target.name}: {', '.join(most_frequent)}{more}"
