"""Series of your own with a class each, of one length or of several: .ts files of the UCR and UEA archives, or .npz.

Source: Dau et al. 2019, The UCR Time Series Archive (arXiv 1810.07758); Bagnall et al. 2018, The UEA multivariate time
    series classification archive (arXiv 1811.00075)
Reference: aeon.datasets.load_from_ts_file; numpy.load

Each channel is standardized by the training series. The tokenizer may also normalise each series by itself:
`tokenizer.normalise=none`, the default for series with a class each, keeps its level and its size, and `instance` hides
them from the model. Simple models are reported beside a run: `majority` answers the most frequent class, `nearest` the
class of the nearest training series (Euclidean distance, all series resampled to the longest), the usual baseline of
these archives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import (
    Batch,
    BatchSize,
    DataSpec,
    InputReader,
    NewInputs,
    Seed,
    SimpleModel,
    Splits,
    Text,
    Tokenizer,
)
from blockyard.data.files.class_names import warn_of_names
from blockyard.data.files.digest import sha256
from blockyard.data.files.file_names import new_file
from blockyard.data.files.series_records import Records, read_npz, read_ts
from blockyard.data.splits.columns import ColumnSplit, Ragged
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.simple_models import equally_spaced, majority_model, sampled
from blockyard.data.splits.split import Fraction, column_moments, input_deviation, stratified
from blockyard.errors import UserError, fold

MOST_NEIGHBOURS = 2000  # training series that `nearest` compares with, at equal distances


@dataclass(frozen=True)
class Series:
    """Padded series with a class each.

    values: (n, longest, C), standardized, NaN where missing and behind the end; lengths, target: (n,) int64
    """

    values: Tensor
    lengths: Tensor
    target: Tensor

    def select(self, indices: Tensor) -> Series:
        """Return the series `indices` (m,)."""
        return Series(self.values[indices], self.lengths[indices], self.target[indices])


class LabelledSeriesSplit:
    """One split: inputs (B, steps, C), target (B,), and lengths (B,) where series have different lengths.

    class_counts: (V,) int64, the series of each class in the training split
    scale: mean and standard deviation of each channel of the training split, (C,), in the units of the data
    """

    def __init__(
        self, series: Series, train: Series, classes: int, *, variable: bool, scale: tuple[Tensor, Tensor]
    ) -> None:
        self.series, self.train, self.variable, self.scale = series, train, variable, scale
        self.class_counts = train.target.bincount(minlength=classes)

    def __len__(self) -> int:
        return len(self.series.target)

    @property
    def lengths(self) -> Tensor:
        """The steps of each series, (n,)."""
        return self.series.lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the series `order` (B,), as long as the longest of them."""
        lengths = self.series.lengths[order]
        values = self.series.values[order]
        if not self.variable:
            return Batch(values, self.series.target[order])
        return Batch(values[:, : int(lengths.max())], self.series.target[order], lengths=lengths)

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the models of the most frequent class and of the nearest training series."""
        yield majority_model(self.class_counts)
        count, classes = len(self.train.target), len(self.class_counts)
        yield SimpleModel(
            "nearest",
            lambda: lambda order: nearest(self.train, self.series.select(order), classes),
            sampled("fitted", min(count, MOST_NEIGHBOURS), count),
            ("loss",),
        )


def nearest(train: Series, series: Series, classes: int) -> Tensor:
    """Return logits (n, V): the negative distance to the nearest training series of each class.

    Series are resampled linearly to the longest, and missing values are zero, the mean.
    """
    count = len(train.target)
    chosen = equally_spaced(count, MOST_NEIGHBOURS)
    references = _resampled(train, chosen)  # (m, longest C)
    values = _resampled(series, torch.arange(len(series.target)))  # (n, longest C)
    distance = torch.cdist(values, references)  # (n, m)
    result = torch.full((len(values), classes), -torch.inf)
    for number in range(classes):
        members = train.target[chosen] == number
        if members.any():
            result[:, number] = -distance[:, members].min(1).values
    return result


def _resampled(series: Series, index: Tensor) -> Tensor:
    """Return the series `index` (n,) as (n, longest C), each stretched linearly over all steps."""
    longest = series.values.shape[1]
    last = series.lengths[index, None] - 1  # (n, 1)
    values = series.values[index].nan_to_num()
    step = torch.linspace(0, 1, longest) * last  # (n, longest), between the steps of the series
    low = step.floor().long()
    high = torch.minimum(low + 1, last)
    share = (step - low)[..., None]
    batch = torch.arange(len(index))[:, None]
    return (values[batch, low] * (1 - share) + values[batch, high] * share).flatten(1)


@dataclass(kw_only=True, eq=False)
class SeriesTable(LoadedData):
    """Reads every series once. A file of the archives has the training series, `test_path` those of the test.

    Options:
        path: a .ts file, or an .npz with X_train, y_train and, if there is a test split, X_test, y_test
        test_path: a .ts file of the test split; null draws it from `path`
        validation_fraction: share of the training series that is the validation split, of each class the same
        test_fraction: share of all series that is the test split, where no file names one
        split_seed: seed of the drawn splits; independent of the run's seed, so that all seeds share them
    """

    path: Text = "data/series_TRAIN.ts"
    test_path: Text | None = None
    validation_fraction: Fraction = 0.2
    test_fraction: Fraction = 0.2
    split_seed: Seed = 0
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256

    def __post_init__(self) -> None:
        if self.test_path is not None and not (self.path.endswith(".ts") and self.test_path.endswith(".ts")):
            raise ValueError("data.test_path is for .ts files; an .npz has its test series in X_test: use null")

    @property
    def spec(self) -> DataSpec:
        """Series with a class each; before the file is there, its sizes are not known."""
        if self.missing() is not None:
            return DataSpec("series", (64, 1), variable=True, target="class")
        shape = (max(self._lengths), self._records[0].series[0].shape[1])
        names = self.class_names
        return DataSpec(
            "series", shape, len(set(self._lengths)) > 1, target="class", classes=len(names), class_names=names
        )

    def missing(self) -> str | None:
        """Return a message that names the missing file and the remedy, or None."""
        for option, name in (("path", self.path), ("test_path", self.test_path)):
            if name is not None and not Path(name).expanduser().is_file():
                return f"no file {Path(name).expanduser().absolute()}; set data.{option}=FILE.ts or FILE.npz"
        return None

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The labels, sorted as numbers if all of them are."""
        train, test = self._records
        names = set(train.labels)
        if test is not None:
            names |= set(test.labels)
        try:
            return tuple(sorted(names, key=lambda name: (float(name), name)))
        except ValueError:
            return tuple(sorted(names))

    @cached_property
    def _records(self) -> tuple[Records, Records | None]:
        """The series of the training file and of the test. Raises UserError for a file that cannot be used."""
        with torch.device("cpu"):  # `check` builds models on the meta device, where tensors have no values
            return self._read()

    def _read(self) -> tuple[Records, Records | None]:
        path = Path(self.path).expanduser()
        if path.suffix == ".npz":
            train, test = read_npz(path)
        elif path.suffix == ".ts":
            train = read_ts(path)
            test = None if self.test_path is None else read_ts(Path(self.test_path).expanduser())
        else:
            raise UserError(f"data.path={self.path}: expected .ts or .npz")
        if not train.series:
            raise UserError(f"{path} has no series")
        if test is not None and not test.series:
            raise UserError(f"the test split of {path} has no series")
        channels = {series.shape[1] for series in train.series}
        if test is not None:
            channels |= {series.shape[1] for series in test.series}
        if len(channels) > 1:
            raise UserError(f"{path} and its test split have {' and '.join(map(str, sorted(channels)))} channels")
        if len(set(train.labels)) < 2:
            raise UserError(f"{path}: every training series is of class {train.labels[0]}; a class needs another one")
        unseen = [] if test is None else sorted(set(test.labels) - set(train.labels))
        if unseen:
            raise UserError(f"{path}: class {fold(unseen)} has test series and no training series")
        warn_of_names(path, dict(Counter(train.labels)))
        return train, test

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Read the series of .ts files, by file and number. Raises UserError for other lengths or channels."""
        spec = self.spec
        longest, expected_channels = spec.shape
        mean, std = reader.test().scale
        names = []
        series = []
        for path in map(new_file, inputs):
            if path.suffix != ".ts":
                raise UserError(f"{path}: new series are read from .ts files, or from rows of arrays (.npz, .npy)")
            for number, values in enumerate(read_ts(path).series, start=1):
                steps, channels = values.shape
                fits = steps <= longest if spec.variable else steps == longest
                if channels != expected_channels or not fits:
                    most = "up to " if spec.variable else ""
                    raise UserError(
                        f"{path}, series {number}: {steps} steps of {channels} channels; {reader.run} reads "
                        f"{most}{longest} of {expected_channels}"
                    )
                names.append(f"{path}, series {number}")
                series.append(((values - mean) / std).float())
        return NewInputs(names, ColumnSplit(Ragged.of(series, fill=float("nan"))))

    @property
    def _lengths(self) -> list[int]:
        """The steps of each series of both files."""
        train, test = self._records
        series = train.series if test is None else [*train.series, *test.series]
        return list(map(len, series))

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Draw the splits that no file names, and standardize. Raises UserError for a split without series."""
        train, test = self._records
        numbers = {name: number for number, name in enumerate(self.class_names)}
        target = torch.tensor([numbers[label] for label in train.labels])
        kept = torch.arange(len(target))
        held = None
        if test is None:
            kept, held = stratified(target, self.test_fraction, self.split_seed)
        # Another seed than the test split's, so that the two draws are independent.
        inner, drawn = stratified(target[kept], self.validation_fraction, self.split_seed + 1)
        validation = kept[drawn]
        kept = kept[inner]
        kept = kept[self.kept(0, len(kept), target[kept])]
        validation = validation[self.kept(1, len(validation), target[validation])]
        if held is not None:
            held = held[self.kept(2, len(held), target[held])]
        for name, part in (("training", kept), ("validation", validation), ("test", held)):
            if part is not None and not len(part):
                raise UserError(f"{self.path}: {len(target)} series leave none for the {name} split; use more of them")
        lacking = sorted(self.class_names[i] for i in set(target.tolist()) - set(target[kept].tolist()))
        if lacking:
            raise UserError(f"{self.path}: no training series is left of class {fold(lacking)}; use smaller fractions")
        values = torch.cat([train.series[i] for i in kept.tolist()]).double()
        mean, std = column_moments(values)
        std = input_deviation(mean, std, [str(number) for number in range(len(std))], "channels")
        parts = [self._part(train, index, target, mean, std) for index in (kept, validation)]
        if test is None:
            assert held is not None
            parts.append(self._part(train, held, target, mean, std))
        else:
            test_target = torch.tensor([numbers[label] for label in test.labels])
            index = self.kept(2, len(test_target), test_target)
            parts.append(self._part(test, index, test_target, mean, std))
        contents: list[Tensor] = []
        for series in parts:
            contents += [series.values, series.lengths, series.target]
        self._fingerprint = sha256(contents)
        classes = len(self.class_names)
        variable = len(set(self._lengths)) > 1
        splits = []
        for series in parts:
            splits.append(LabelledSeriesSplit(series, parts[0], classes, variable=variable, scale=(mean, std)))
        return Splits(*splits)

    def _part(self, records: Records, index: Tensor, target: Tensor, mean: Tensor, std: Tensor) -> Series:
        series = [((records.series[i] - mean) / std).float() for i in index.tolist()]
        lengths = torch.tensor([len(values) for values in series])
        longest = max(self._lengths)
        padded = torch.full((len(series), longest, len(mean)), float("nan"))  # (n, longest, C)
        for number, values in enumerate(series):
            padded[number, : len(values)] = values
        return Series(padded, lengths, target[index])
