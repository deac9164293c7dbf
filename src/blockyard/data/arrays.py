"""Arrays of your own: images, sequences of token ids, series or vectors, with a class or numbers each.

Source: the .npy format of NumPy
Reference: numpy.load; sklearn's StandardScaler

    x   uint8 (n, H, W), (n, C, H, W) or (n, H, W, C)     images       tokenizer=patch, levels
        integers (n, N)                                   token ids    tokenizer=symbols
        floats (n, steps, C)                              series       tokenizer=series_patch
        floats (n, F)                                     vectors      tokenizer=columns
    y   integers or text (n,): classes; floats (n,) or (n, T): real values; integers (n, N): a token id for each

An .npz holds them by name, with an optional `split` of train, val or test; an .npy has its targets in another one and
is mapped into memory. Floats are standardized by the training rows. Equal rows stay in one drawn split.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import BatchSize, DataSpec, ImageTokenizer, Splits, Text, Tokenizer, Vocabulary
from blockyard.data.files.arrays import (
    Kind,
    check_inputs,
    check_targets,
    image_shape,
    kind_of,
    names_of,
    read_array,
    refuse_rows,
)
from blockyard.data.files.class_names import plain_names, warn_of_names
from blockyard.data.files.digest import sha256
from blockyard.data.files.split_names import SPLIT, SPLIT_NAMES, SPLIT_NUMBERS, split_number
from blockyard.data.splits.arrays import ArrayRows, array_splits, image_array_splits, scale_of
from blockyard.data.splits.augment import AugmentOptions
from blockyard.data.splits.loaded import LoadedData, forget, read_once
from blockyard.data.splits.row_splits import log, split_rows, together
from blockyard.data.splits.split import DrawnSplits, with_values
from blockyard.errors import UserError


@dataclass(kw_only=True, eq=False)
class Arrays(AugmentOptions, DrawnSplits, LoadedData):
    """Rows of arrays.

    Options:
        path: an .npz file, or the .npy file of the inputs
        inputs: the name of the inputs in an .npz
        target: the name of the targets in an .npz, or the .npy file of the targets; null has none
        kind: what the inputs are; auto says it by their type and shape
        vocabulary: number of token ids; null is one more than the largest
        validation_fraction: share of all rows that is the validation split, if the file names none
        test_fraction: share of all rows that is the test split, if the file names none
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
    """

    path: Text = "data/arrays.npz"
    inputs: Text = "x"
    target: Text | None = "y"
    kind: Literal["auto", "image", "symbols", "series", "vector"] = "auto"
    vocabulary: Vocabulary | None = None
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256

    def __post_init__(self) -> None:
        AugmentOptions.__post_init__(self)
        DrawnSplits.__post_init__(self)

    def missing(self) -> str | None:
        """Return a message that names the missing file and the remedy, or None."""
        if self._path.is_file():
            return None
        return f"no file {self._path.absolute()}; set data.path=FILE.npz with arrays {self.inputs} and {self.target}"

    @property
    def spec(self) -> DataSpec:
        """The specification of a row; without the file, images of unknown classes."""
        if self.missing() is not None:
            return DataSpec("image", (1, 32, 32), target="class", levels=256)
        values, target = self.values, self.targets
        shape = values.shape[1:]
        if self.reads != "image":
            self.refuse_without_images(f"of the kind {self.reads}", "leave it out, or set data.kind=image for uint8")
        if self.reads == "image":
            self.augmentation(self.image_shape[0])  # refused before anything is loaded
            data_spec = DataSpec("image", self.image_shape, levels=256)
        elif self.reads == "symbols":
            data_spec = DataSpec("symbols", shape, vocabulary=self.vocabulary or int(values.max()) + 1)
        else:
            data_spec = DataSpec(self.reads, shape)
        facts = {name: getattr(data_spec, name) for name in ("modality", "shape", "levels", "vocabulary")}
        if target is None:
            return data_spec
        if self.class_names:
            return DataSpec(**facts, target="class", classes=len(self.class_names), class_names=self.class_names)
        if target.dtype.kind == "f":
            return DataSpec(**facts, target="values", values=(target.shape[1] if target.ndim == 2 else 1,))
        return DataSpec(**facts, target="symbols")

    @cached_property
    def values(self) -> np.ndarray:
        """The inputs. Raises UserError for a shape that is nothing known, and for values that are not finite."""
        return read_once(self, "values", [self._path], self._read_values)

    def _read_values(self) -> np.ndarray:
        values = read_array(self._path, self.inputs, "data.inputs")
        check_inputs(values, self.kind, self.vocabulary, self._path, self.inputs)
        return values

    @cached_property
    def targets(self) -> np.ndarray | None:
        """The targets, or None. Raises UserError for another number of rows, and for a target of NaN."""
        if self.target is None:
            return None
        path = Path(self.target).expanduser() if self._path.suffix == ".npy" else self._path
        if not path.is_file():
            raise UserError(f"data.target={self.target}: no file {path}; an .npy has its targets in another, or null")
        return read_once(self, "targets", dict.fromkeys((self._path, path)), lambda: self._read_targets(path))

    def _read_targets(self, path: Path) -> np.ndarray:
        target = read_array(path, str(self.target), "data.target")
        check_targets(target, self.values, self.reads, path, str(self.target))
        if target.dtype.kind in "US":
            return _named_classes(path, str(self.target), target)
        return target

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes, sorted, numbers by their value; none where targets are real values or token ids."""
        if self.targets is None or self.targets.dtype.kind == "f" or self.targets.ndim > 1:
            return ()
        names = tuple(str(name) for name in np.unique(self.targets))
        if len(names) < 2:
            raise UserError(f"{self._path}: every row has the class {names[0]}; a class needs another one")
        return names

    @property
    def reads(self) -> Kind:
        """The kind of the inputs."""
        return kind_of(self.values, self.kind, f"{self._path}, {self.inputs}")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return image_shape(self.values.shape[1:])

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Draw or read the splits, and standardize. Raises UserError for a class without a training row."""
        target = torch.zeros(len(self.values), dtype=torch.int64)
        if self.class_names:
            assert self.targets is not None
            target = torch.from_numpy(np.unique(self.targets, return_inverse=True)[1]).long()
        parts = self._parts(target)
        rows = [ArrayRows(self.values, part) for part in parts]
        targets = [target[part] for part in parts]
        forget()  # this module holds the arrays, and nobody else needs them again
        chunks = chain.from_iterable(part.chunks() for part in rows)  # read one by one: an array may be mapped
        self._fingerprint = sha256(chain(chunks, self._own_targets(parts, target)))
        splits = self._splits(rows, targets, tokenizer)
        # Images that are written have no other target than their own tokens.
        if self.targets is None or self.targets.dtype.kind != "f" or isinstance(tokenizer, ImageTokenizer):
            return splits
        values = torch.from_numpy(self.targets.reshape(len(self.targets), -1).astype(np.float64))
        return with_values(
            splits, [values[part] for part in parts], [f"{self.target}[{n}]" for n in range(values.shape[1])]
        )

    def _own_targets(self, parts: list[Tensor], target: Tensor) -> list[Tensor]:
        own = self.targets
        numbers = target if own is None or self.class_names else torch.from_numpy(np.ascontiguousarray(own))
        return [numbers[part] for part in parts]

    def _splits(self, rows: list[ArrayRows], targets: list[Tensor], tokenizer: Tokenizer) -> Splits:
        if self.reads == "image":
            return image_array_splits(rows, targets, self.augmentation(self.image_shape[0]), tokenizer, self.spec)
        scale = None if self.reads == "symbols" else scale_of(rows[0], self.inputs)
        split_targets: list[Tensor | None] = list(targets)
        if self.targets is None:
            split_targets = [None] * 3
        elif self.targets.ndim > 1 and self.targets.dtype.kind != "f":
            split_targets = [ids.long() for ids in self._own_targets([part.index for part in rows], targets[0])]
        counts = targets[0].bincount(minlength=len(self.class_names)) if self.class_names else None
        return array_splits(rows, split_targets, scale, counts)

    def _parts(self, target: Tensor) -> list[Tensor]:
        """Return the rows of each split."""
        fractions = (self.validation_fraction, self.test_fraction)
        parts = split_array(self._path, self.values, target, str(self.target), fractions, self.split_seed)
        return [part[self.kept(number, len(part), target[part])] for number, part in enumerate(parts)]

    @property
    def _path(self) -> Path:
        return Path(self.path).expanduser()


def split_array(
    path: Path, values: np.ndarray, target: Tensor, name: str, fractions: tuple[float, float], seed: int
) -> list[Tensor]:
    """Return the indices of the rows of each split. Raises UserError for a class without a training row.

    target: (n,) int64 classes, or zeros; name: of the targets
    """
    assigned = None
    if path.suffix == ".npz" and SPLIT in names_of(path):
        splits = read_array(path, SPLIT, "split").astype(str)
        unknown = np.array([split_number(split) is None for split in splits], dtype=bool)
        refuse_rows(path, SPLIT, f"none of {SPLIT_NAMES}", unknown)
        assigned = [SPLIT_NUMBERS[split.lower()] for split in splits]
    keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in values]
    units, repeated = together(keys)
    if repeated:
        log.warning("%s: %d of %d rows repeat an earlier one", path, repeated, len(keys))
    parts = split_rows(path, target, assigned, fractions, seed, units)
    untrained = ~np.isin(target.numpy(), target[parts[0]].numpy())
    refuse_rows(path, name, "no training row has this class", untrained)
    return parts


def _named_classes(path: Path, name: str, target: np.ndarray) -> np.ndarray:
    """Return classes (n,) of text or bytes by their `plain_names`; warn of names that look alike."""
    if target.dtype.kind == "S":
        try:
            target = np.char.decode(target, "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, {name}: classes of bytes that are not UTF-8 text") from error
    labels, index = np.unique(target, return_inverse=True)
    plain = plain_names(labels.tolist())
    classes = np.array([plain[label] for label in labels.tolist()])[index]
    names, counts = np.unique(classes, return_counts=True)
    warn_of_names(path, dict(zip(names.tolist(), counts.tolist(), strict=True)))
    return classes
