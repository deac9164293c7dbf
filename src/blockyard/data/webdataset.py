"""Your own images in tar shards, as webdataset writes them: KEY.jpg and KEY.cls, one pair after the other.

Source: the format of webdataset
Reference: webdataset.WebDataset, webdataset.TarWriter

Shards whose names begin with train, val and test are those splits; a split without shards is drawn from the training
samples. Classes are the texts in the .cls files, sorted, numbers by their value. The headers of the archives are read
once and kept in the cache folder (BLOCKYARD_CACHE) until a shard's size or time of change differs, so that any image
can be read by its place: the order is that of all data sets, a function of seed, epoch and step, and a run resumes
exactly in the middle of an epoch. Images are decoded as by data=image_folder. A
sample is a seek of its own, which a local disk should do well.
"""

from __future__ import annotations

import glob
import io
import logging
import os
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import DataSpec, Text
from blockyard.data.files.class_names import warn_of_names
from blockyard.data.files.file_names import data_files
from blockyard.data.files.images import SUFFIXES
from blockyard.data.files.split_names import split_of_file
from blockyard.data.files.tar_shard import (
    Member,
    MemberName,
    TarImages,
    TarSample,
    dotted_name,
    read_member,
    samples_of,
)
from blockyard.data.splits.images import ImageFiles
from blockyard.data.splits.order import mix
from blockyard.data.splits.photographs import Photographs
from blockyard.data.splits.split import check_fractions, refuse_untrained, stratified
from blockyard.errors import UserError, first_line, fold, shortened

log = logging.getLogger("blockyard")
MOST_CLASSES = 100_000
MOST_SHARDS = 1_000_000
_DEEPEST_BRACES = 10
# As braceexpand reads them: {0..9}, {a..z}, both with a step.
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTER_ORDER = string.ascii_uppercase + string.ascii_lowercase
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")


@dataclass(kw_only=True, eq=False)
class WebDataset(Photographs):
    """Image files in tar shards.

    Options:
        path: a .tar file, a folder of them, a glob, or a pattern such as data/train-{000..146}.tar
        label: ending of the files that hold the class, a number or a name
        test_fraction: share of the training samples that is the test split, where no shard is
        validation_fraction: share of the training samples that is the validation split, where no shard is
    """

    path: Text = "data/shards"
    label: Text = "cls"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fractions(self.validation_fraction, self.test_fraction)

    @property
    def spec(self) -> DataSpec:
        """Images of one size with a class each, whose names are the labels in the shards."""
        names = () if self.missing() else self._index.names
        return replace(super().spec, class_names=names)

    @property
    def classes(self) -> int | None:
        """Number of classes of the training shards; None without them."""
        return None if self.missing() else len(self._index.names)

    def missing(self) -> str | None:
        """Return a message that says that shards or the library are missing and the remedy, or None."""
        import importlib.util

        if importlib.util.find_spec("webdataset") is None:
            return "data=webdataset reads shards by the package webdataset: pip install 'blockyard[webdataset]'"
        if shards_of(self.path):
            return None
        return f"no shards at {Path(self.path).expanduser().absolute()}; set data.path=FOLDER with train-000.tar, ..."

    def parts(self) -> tuple[ImageFiles, ImageFiles, ImageFiles]:
        """Return the images of each split. Raises UserError naming the shard and the member that cannot be used."""
        index = self._index
        parts = {name: self.image_files(*index.parts[name]) for name in index.parts}
        rest = parts["train"]
        for name, share, seed in (
            ("test", self.test_fraction, mix("test", self.split_seed)),
            ("validation", self.validation_fraction, self.split_seed),
        ):
            if name not in parts:
                kept, held_out = stratified(rest.target, share, seed)
                rest, parts[name] = rest.select(kept), rest.select(held_out)
        refuse_untrained(rest.target, index.names, self.path)
        return rest, parts["validation"], parts["test"]

    def open(self, file: tuple[Path, Member]) -> tuple[io.BytesIO, object]:
        """Return the content of an image file, and its shard and name."""
        return io.BytesIO(read_member(*file)), MemberName(*file)

    def contents(self, files: TarImages) -> Sequence[str | Tensor]:
        """Return names and sizes of the shards, and the place of each image."""
        return [*(f"{shard.name} {shard.stat().st_size}" for shard in files.shards), files.where]

    @cached_property
    def _index(self) -> TarIndex:
        endings = frozenset(suffix[1:] for suffix in SUFFIXES)
        return read_index(shards_of(self.path), self.label, endings)


class TarIndex(NamedTuple):
    """The content of shards. names: of the classes; parts: images and classes (n,) int64 of each split with shards."""

    names: tuple[str, ...]
    parts: dict[str, tuple[TarImages, Tensor]]


def shards_of(path: str) -> list[Path]:
    """Return the shards that a path names: one shard, a folder, a glob or a pattern with braces."""
    from webdataset.shardlists import expand_urls

    root = Path(path).expanduser()
    if os.path.isdir(root):  # False for a name that is too long, where `Path.is_dir` raises
        return data_files(root, (file for file in root.iterdir() if ".tar" in file.suffixes and file.is_file()))
    _check_braces(path, str(root))
    try:
        patterns = expand_urls(str(root))
    except ValueError as error:  # unbalanced braces
        raise UserError(
            f"data.path={path}: {first_line(error)}; a pattern is such as train-{{000..146}}.tar"
        ) from error
    named: list[Path] = []
    for pattern in patterns:
        named += map(Path, glob.glob(pattern) or [pattern])
    absent = [name for name in named if not name.is_file()]
    if absent and len(absent) < len(named):
        raise UserError(f"data.path={path}: {absent[0]} does not exist; {len(named) - len(absent)} of the shards do")
    return [] if absent else sorted(set(named))


def _check_braces(path: str, pattern: str) -> None:
    """Raise UserError for braces that do not match, are nested too deeply, or name more shards than can be listed."""
    try:
        count = sum(_count(part) for part in pattern.split("::"))
    except ValueError as error:
        raise UserError(f"data.path={shortened(path)}: {error}; a pattern is such as train-{{000..146}}.tar") from error
    if count > MOST_SHARDS:
        raise UserError(f"data.path={shortened(path)} names {count:,} shards; at most {MOST_SHARDS:,} are allowed")


def _count(pattern: str, depth: int = 0) -> int:
    """Return how many names a pattern with braces stands for, as braceexpand expands it, without expanding it."""
    if depth > _DEEPEST_BRACES:
        raise ValueError(f"its braces are nested more than {_DEEPEST_BRACES} deep")
    count = 1
    for expression in _top_level(pattern):
        numbers = _NUMBERS.fullmatch(expression)
        letters = _LETTERS.fullmatch(expression)
        if numbers:
            count *= _length_of_range(int(numbers[1]), int(numbers[2]), numbers[3])
        elif letters:
            count *= _length_of_range(_LETTER_ORDER.index(letters[1]), _LETTER_ORDER.index(letters[2]), letters[3])
        else:
            count *= sum(_count(part, depth + 1) for part in _split_top_level(expression))
    return count


def _length_of_range(start: int, stop: int, step: str | None) -> int:
    return abs(stop - start) // (int(step or 1) or 1) + 1  # a step of 0 counts as 1


def _top_level(pattern: str) -> list[str]:
    """Return the expressions between the outermost braces. Raises ValueError where a brace is not closed."""
    expressions, depth, start, at = [], 0, 0, 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "{":
            depth += 1
            start = at + 1 if depth == 1 else start
        elif pattern[at] == "}":
            depth -= 1
            if depth == 0:
                expressions.append(pattern[start:at])
            if depth < 0:
                break
        at += 1
    if depth:
        raise ValueError("Unbalanced braces")
    return expressions


def _split_top_level(expression: str) -> list[str]:
    """Return the parts between commas that are in no further braces."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(expression):
        if expression[at] == "\\":
            at += 1
        elif expression[at] in "{}":
            depth += 1 if expression[at] == "{" else -1
        elif expression[at] == "," and depth == 0:
            parts.append(expression[start:at])
            start = at + 1
        at += 1
    return [*parts, expression[start:]]


def read_index(shards: Sequence[Path], label: str, endings: frozenset[str]) -> TarIndex:
    """Read the headers of all shards, where they are not in the cache.

    endings: of images. Raises UserError for a shard that cannot be used, as `read_shard` does, for a sample
    without one image, shards of which only some say their split, and a class without a training sample. Warns of names
    that several splits share.
    """
    by_split: dict[str, list[Path]] = {}
    for shard in shards:
        by_split.setdefault(split_of_file(shard.name) or "", []).append(shard)
    if "" in by_split and len(by_split) > 1:
        raise UserError(
            f"{by_split[''][0]} does not say its split, and other shards do; begin its name with train, val or test"
        )
    by_split = {name or "train": files for name, files in by_split.items()}
    if "train" not in by_split:
        raise UserError(f"{shards[0].parent} has no shard for training: no name there begins with train")
    read = {name: _read_split(files, label, endings) for name, files in by_split.items()}
    names = sorted(set(read["train"].labels), key=_numbers_first)
    if not 2 <= len(names) <= MOST_CLASSES:
        raise UserError(
            f"{shards[0].parent}: number of classes in the training shards: {len(names):,}; 2 to {MOST_CLASSES:,} are "
            "allowed"
        )
    numbers = {name: number for number, name in enumerate(names)}
    for part in read.values():
        part.check_classes(numbers)
    trained = set(read["train"].keys)
    for name in ("validation", "test"):
        keys = read[name].keys if name in read else []
        shared = sum(key in trained for key in keys)
        if shared:
            log.warning("%d of %d %s samples have names of training samples", shared, len(keys), name)
    warn_of_names(shards[0].parent, dict(Counter(read["train"].labels)))
    parts = {}
    for name, part in read.items():
        target = torch.tensor([numbers[label] for label in part.labels])
        parts[name] = (TarImages(by_split[name], part.where), target)
    return TarIndex(tuple(names), parts)


class _Read(NamedTuple):
    """The samples of a split. where: as in `TarImages`; labels and keys: of each; shards: of the split."""

    where: Tensor
    labels: list[str]
    keys: list[str]
    shards: list[Path]

    def check_classes(self, numbers: dict[str, int]) -> None:
        """Raise UserError for a sample of a class that no training sample has."""
        for row, label in enumerate(self.labels):
            if label not in numbers:
                shard = self.shards[int(self.where[row, 0])]
                raise UserError(
                    f"{shard}: {self.keys[row]} has the class {label!r}, which no training sample has; "
                    f"classes: {fold(list(numbers))}"
                )


def _read_split(shards: list[Path], label: str, endings: frozenset[str]) -> _Read:
    where, labels, keys = [], [], []
    for number, shard in enumerate(shards):
        for sample in samples_of(shard, label):
            where.append((number, *sample.files[_image_of(shard, sample, endings)]))
            labels.append(sample.label)
            keys.append(sample.key)
    return _Read(torch.tensor(where), labels, keys, shards)


def _image_of(shard: Path, sample: TarSample, endings: frozenset[str]) -> str:
    images = [name for name in sample.files if name.rpartition(".")[2] in endings]
    if len(images) != 1:
        has = ", ".join(f".{name}" for name in sample.files) or "nothing else"
        raise UserError(
            f"{shard}: {sample.key} has {len(images)} images beside its class ({has}); one of "
            f"{', '.join(f'.{ending}' for ending in sorted(endings))} is needed{dotted_name(sample.key, sample.files)}"
        )
    return images[0]


def _numbers_first(label: str) -> tuple[bool, int, str]:
    """Return a sort key that orders numbers by their value, in front of names."""
    if label.isdecimal():
        return (False, int(label), label)
    return (True, 0, label)
