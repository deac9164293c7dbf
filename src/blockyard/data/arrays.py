"""Arrays of your own: images, sequences of token ids, series or vectors, with a class or numbers each.

Source: the .npy format of NumPy
Reference: numpy.load; sklearn's StandardScaler

    x   uint8 (n, H, W), (n, C, H, W) or (n, H, W, C)     images       tokenizer=patch
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
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    CountOrZero,
    DataSpec,
    Rate,
    Seed,
    Split,
    Splits,
    Text,
    Tokenizer,
    Vocabulary,
)
from blockyard.data._array_file import names_of, read_array, refuse_rows
from blockyard.data._array_splits import (
    ArraySplit,
    ImageArraySplit,
    LabelledArraySplit,
    Rows,
    channels_first,
    moments,
)
from blockyard.data._augment import Augment
from blockyard.data._images import Moments, Preprocess
from blockyard.data._loaded import LoadedData
from blockyard.data._pair_file import NAMES
from blockyard.data._split import Fraction, check_fractions, sha256
from blockyard.data._table_splits import log, split_rows, together
from blockyard.data._with_targets import with_values
from blockyard.errors import UserError

Kind = Literal["image", "symbols", "series", "vector"]
SPLIT = "split"
SAMPLE = 10_000  # images that give the channel statistics


@dataclass(kw_only=True, eq=False)
class Arrays(LoadedData):
    """Rows of arrays.

    Options:
        path: an .npz file, or the .npy file of the inputs
        inputs: the name of the inputs in an .npz
        target: the name of the targets in an .npz, or the .npy file of the targets; null has none
        kind: what the inputs are; auto says it by their type and shape
        vocabulary: number of token ids; null is one more than the largest
        validation_fraction: share of all rows that is the validation split, if the file names none
        test_fraction: share of all rows that is the test split, if the file names none
        split_seed: seed of the drawn splits; independent of the run's seed, so that all seeds share them
        shift: random translation of training images in pixels, padded with zeros
        crop: random square crop of training images of relative side 1 - crop or more, resized to the full image
        flip: mirror half of the training images left to right
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
    """

    path: Text = "data/arrays.npz"
    inputs: Text = "x"
    target: Text | None = "y"
    kind: Literal["auto", "image", "symbols", "series", "vector"] = "auto"
    vocabulary: Vocabulary | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.1
    split_seed: Seed = 0
    shift: CountOrZero = 0
    crop: Rate = 0.0
    flip: bool = False
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256

    def __post_init__(self) -> None:
        check_fractions(self.validation_fraction, self.test_fraction)

    def missing(self) -> str | None:
        """Returns that there is no such file and what to do about it, or None."""
        if self._path.is_file():
            return None
        return f"no file {self._path.absolute()}; set data.path=FILE.npz with arrays {self.inputs} and {self.target}"

    @property
    def spec(self) -> DataSpec:
        """What a row is; without the file, images of unknown classes."""
        if self.missing() is not None:
            return DataSpec("image", (1, 32, 32), target="class", levels=256)
        values, target = self.values, self.targets
        shape = values.shape[1:]
        if self.reads == "image":
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
        values = read_array(self._path, self.inputs, "data.inputs")
        if values.dtype.kind not in "biuf" or not 2 <= values.ndim <= 4:
            raise UserError(
                f"{self._path}, {self.inputs}: {values.dtype} of shape {values.shape}; inputs are numbers, 2 to 4 axes"
            )
        if values.dtype.kind == "f":
            bad = np.isinf(values).reshape(len(values), -1).any(1)
            refuse_rows(self._path, self.inputs, "an infinite value", bad)
        elif self._kind_of(values) == "symbols":
            most = self.vocabulary or int(values.max()) + 1
            bad = ((values < 0) | (values >= most)).reshape(len(values), -1).any(1)
            refuse_rows(self._path, self.inputs, f"a token id below 0 or from data.vocabulary={most} on", bad)
        return values

    @cached_property
    def targets(self) -> np.ndarray | None:
        """The targets, or None. Raises UserError for another number of rows, and for a target of NaN."""
        if self.target is None:
            return None
        path = Path(self.target).expanduser() if self._path.suffix == ".npy" else self._path
        if not path.is_file():
            raise UserError(f"data.target={self.target}: no file {path}; an .npy has its targets in another, or null")
        target = read_array(path, self.target, "data.target")
        if len(target) != len(self.values):
            raise UserError(f"{path}: {len(self.values)} rows of inputs and {len(target)} targets")
        if target.dtype.kind == "f":
            refuse_rows(
                path, self.target, "the target is not finite", ~np.isfinite(target).reshape(len(target), -1).all(1)
            )
        elif target.ndim > 1 and (self.reads != "symbols" or target.shape != self.values.shape):
            raise UserError(f"{path}, {self.target}: {target.dtype} of shape {target.shape}; classes have one axis")
        return target

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes, sorted, numbers by their value; none where targets are real values or token ids."""
        if self.targets is None or self.targets.dtype.kind == "f" or self.targets.ndim > 1:
            return ()
        names = tuple(str(name.decode() if isinstance(name, bytes) else name) for name in np.unique(self.targets))
        if len(names) < 2:
            raise UserError(f"{self._path}: every row has the class {names[0]}; a class needs another one")
        return names

    @property
    def reads(self) -> Kind:
        """What the inputs are."""
        return self._kind_of(self.values)

    def _kind_of(self, values: np.ndarray) -> Kind:
        kind = self.kind
        if kind == "auto":
            if values.ndim == 2:
                kind = "vector" if values.dtype.kind == "f" else "symbols"
            else:
                kind = "image" if values.dtype == np.uint8 else "series"
        axes = {"image": (3, 4), "symbols": (2,), "series": (3,), "vector": (2,)}[kind]
        right = (
            values.dtype == np.uint8 if kind == "image" else values.dtype.kind in ("biu" if kind == "symbols" else "f")
        )
        if values.ndim not in axes or not right:
            raise UserError(
                f"{self._path}, {self.inputs}: {values.dtype} of shape {values.shape} is no {kind} (images are uint8, "
                "token ids integers (n, N), series floats (n, steps, C), vectors floats (n, F)); convert it"
            )
        return kind

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        shape = self.values.shape[1:]
        if len(shape) == 2:
            return (1, shape[0], shape[1])
        return (shape[2], shape[0], shape[1]) if self._last else (shape[0], shape[1], shape[2])

    @property
    def _last(self) -> bool:
        """Whether the channels of images are the last axis."""
        shape = self.values.shape[1:]
        return len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Draws or reads the splits, and standardizes. Raises UserError for a class without a training row."""
        names, target = self.class_names, torch.zeros(len(self.values), dtype=torch.int64)
        if names:
            assert self.targets is not None
            target = torch.from_numpy(np.unique(self.targets, return_inverse=True)[1]).long()
        parts = self._parts(target)
        rows = [Rows(self.values, part) for part in parts]
        targets = [target[part] for part in parts]
        self._fingerprint = sha256(
            [*(chunk for each in rows for chunk in each.chunks()), *self._own_targets(parts, target)]
        )
        splits = self._splits(rows, targets)
        if self.targets is None or self.targets.dtype.kind != "f":
            return splits
        values = torch.from_numpy(self.targets.reshape(len(self.targets), -1).astype(np.float64))
        return with_values(
            splits, [values[part] for part in parts], [f"{self.target}[{n}]" for n in range(values.shape[1])]
        )

    def _own_targets(self, parts: list[Tensor], target: Tensor) -> list[Tensor]:
        own = self.targets
        numbers = target if own is None or self.class_names else torch.from_numpy(np.ascontiguousarray(own))
        return [numbers[part] for part in parts]

    def _splits(self, rows: list[Rows], targets: list[Tensor]) -> Splits:
        if self.reads == "image":
            count = len(rows[0].index)
            sample = torch.linspace(0, count - 1, min(SAMPLE, count)).long()
            scale = Moments.of(channels_first(rows[0].take(sample), last=self._last))
            augments = (Augment(self.shift, self.crop, self.flip), Augment(), Augment())
            arguments = zip(rows, targets, (Preprocess(scale, each) for each in augments), strict=True)
            return Splits(*(ImageArraySplit(*each, last=self._last) for each in arguments))
        axes = tuple(range(self.values.ndim - 1))
        scaled = None if self.reads == "symbols" else moments(rows[0], axes)
        if scaled is not None and not bool((scaled[1] > 0).all()):
            column = int((~(scaled[1].flatten() > 0)).nonzero()[0])
            raise UserError(
                f"{self._path}, {self.inputs}: column {column} (from 0) has one value in the training split"
            )
        own: list[Tensor | None] = list(targets)
        if self.targets is None:
            own = [None] * 3
        elif self.targets.ndim > 1 and self.targets.dtype.kind != "f":
            own = list(self._own_targets([each.index for each in rows], targets[0]))
            own = [each.long() for each in own if each is not None]
        counts = targets[0].bincount(minlength=len(self.class_names)) if self.class_names else None
        kind: type[ArraySplit] = ArraySplit if counts is None else LabelledArraySplit
        splits: list[Split] = [kind(each, its, scaled, counts) for each, its in zip(rows, own, strict=True)]
        return Splits(*splits)

    def _parts(self, target: Tensor) -> list[Tensor]:
        """The rows of each split."""
        assigned = None
        if self._path.suffix == ".npz" and SPLIT in names_of(self._path):
            names = read_array(self._path, SPLIT, "split").astype(str)
            refuse_rows(self._path, SPLIT, f"none of {', '.join(NAMES)}", ~np.isin(names, list(NAMES)))
            assigned = [NAMES[name] for name in names]
        keys = [blake2b(row.tobytes(), digest_size=16).digest() for row in self.values]
        units, repeated = together(keys)
        if repeated:
            log.warning("%s: %d of %d rows repeat an earlier one", self._path, repeated, len(keys))
        fractions = (self.validation_fraction, self.test_fraction)
        parts = split_rows(self._path, target, assigned, fractions, self.split_seed, units)
        untrained = ~np.isin(target.numpy(), target[parts[0]].numpy())
        refuse_rows(self._path, str(self.target), "no training row has this class", untrained)
        return [part[self.kept(number, len(part), target[part])] for number, part in enumerate(parts)]

    @property
    def _path(self) -> Path:
        return Path(self.path).expanduser()
