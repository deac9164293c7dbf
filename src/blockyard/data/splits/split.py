"""Cutting a data set into disjoint splits."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from blockyard.contracts import Batch, Seed, Split, Splits
from blockyard.data.splits.order import mix
from blockyard.errors import UserError, fold

log = logging.getLogger("blockyard")
Fraction = Annotated[float, Gt(0), Lt(1)]  # of a data set that goes to one split
_WRAPPED = ("texts", "series", "sequences", "images", "split")  # where splits keep what has the targets
_PROTOCOL_MEMBERS = ("baselines", "lengths", "mean", "std", "pairs")  # of HasBaselines, HasLengths and the like
_CHUNK = 1024


def check_fractions(validation: float, test: float) -> None:
    """Raise ValueError if the validation and test fractions leave nothing for training."""
    if validation + test >= 1:
        raise ValueError(
            f"data.validation_fraction={validation} and data.test_fraction={test} "
            "leave nothing to train on; their sum must be below 1"
        )


@dataclass(kw_only=True, eq=False)
class DrawnSplits:
    """Options of data sets that draw their validation and test split.

    Options:
        split_seed: seed of the drawn splits; independent of the run's seed, so that all seeds share them
    """

    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.1
    split_seed: Seed = 0

    def __post_init__(self) -> None:
        check_fractions(self.validation_fraction, self.test_fraction)


def stratified(target: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split samples into two disjoint sets of indices, (kept, held_out), each ascending.

    target: (n,) int64 classes. `held_out` holds `fraction` of all samples, drawn by `seed`, and of
    each class that share as nearly as whole numbers allow.
    """
    generator = torch.Generator().manual_seed(mix("split", seed))
    shuffled = torch.randperm(len(target), generator=generator)
    by_class = shuffled[torch.argsort(target[shuffled], stable=True)]
    # Every (1 / fraction)-th entry of a list sorted by class: exact shares for any fraction.
    ticks = (torch.arange(len(target) + 1, dtype=torch.float64) * fraction + 1e-9).floor()
    chosen = ticks[1:] > ticks[:-1]
    return by_class[~chosen].sort().values, by_class[chosen].sort().values


def refuse_untrained(target: Tensor, names: Sequence[str], where: object) -> None:
    """Raise UserError for classes without a training sample. target: (n,) int64 of the training split"""
    counts = torch.bincount(target, minlength=len(names))
    untrained = [name for name, count in zip(names, counts.tolist(), strict=True) if not count]
    if untrained:
        raise UserError(f"{where}: no training sample has the class {fold(untrained)}; add samples of it, or remove it")


def nested(target: Tensor, size: int, seed: int) -> Tensor:
    """Select `size` sample indices of target (n,) int64, ascending; a smaller size selects a subset of a larger one.

    `seed` draws an order of the samples in which each class is spread evenly, so that its share of the
    first few is its share of all as nearly as whole numbers allow.
    """
    generator = torch.Generator().manual_seed(mix("nested", seed))
    shuffled = torch.randperm(len(target), generator=generator)
    rank = torch.empty(len(target), dtype=torch.float64)
    for label in target.unique():
        members = shuffled[target[shuffled] == label]
        start = torch.rand((), generator=generator, dtype=torch.float64)
        rank[members] = (torch.arange(len(members), dtype=torch.float64) + start) / len(members)
    return rank.argsort(stable=True)[:size].sort().values


def by_size(sizes: Sequence[int], fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Assign whole documents to splits; return a list of document indices per fraction, then the rest.

    Documents come in an order drawn by `seed`. A split takes its first document, and further ones as long
    as each brings it nearer to its fraction of the total size. The largest document stays in the rest. With
    fewer documents than splits, the rest is filled first and the last splits stay empty; otherwise every
    split gets at least one.
    """
    generator = torch.Generator().manual_seed(mix("documents", seed))
    queue = torch.randperm(len(sizes), generator=generator).tolist()
    total = sum(sizes)
    rest: list[int] = []
    if queue:
        largest = max(range(len(queue)), key=lambda index: sizes[queue[index]])
        rest.append(queue.pop(largest))
    splits: list[list[int]] = []
    for number, fraction in enumerate(fractions, start=1):
        remaining = len(fractions) - number  # splits that still need a document each
        split: list[int] = []
        short = fraction * total
        # Taking a document misses the share by |short - size|, stopping misses it by `short`.
        while queue and (not split or (len(queue) > remaining and sizes[queue[-1]] <= 2 * short)):
            split.append(queue.pop())
            short -= sizes[split[-1]]
        splits.append(sorted(split))
    return [*splits, sorted(rest + queue)]


def known_classes(split: Any) -> Tensor | None:
    """Return the class of each sample (n,) int64 where a split keeps them in memory, else None."""
    target = getattr(split, "target", None)
    if isinstance(target, Tensor) and target.ndim == 1 and not target.is_floating_point():
        return target.long()
    for name in _WRAPPED:
        inner = getattr(split, name, None)
        if inner is not None and not isinstance(inner, Tensor):
            classes = known_classes(inner)
            if classes is not None and len(classes) == len(split):
                return classes
    return None


def classes_of(split: Split) -> Tensor:
    """Return the class of each sample (n,) int64; read the samples where the split does not keep them."""
    classes = known_classes(split)
    if classes is not None:
        return classes
    parts = []
    for order in torch.arange(len(split)).split(_CHUNK):
        target = split.batch(order, None).target
        if not isinstance(target, Tensor) or target.ndim != 1 or target.is_floating_point():
            raise ValueError("the data has no class for each sample")
        parts.append(target)
    return torch.cat(parts)


class WithTargets:
    """The inputs of another split with real-valued targets (n, T), NaN where a value is missing.

    mean, std: (T,) of the training split, in the units of the data, by which targets are standardized; 0 and 1 for
        labels, which are 0 or 1 themselves
    """

    def __init__(self, split: Split, target: Tensor, mean: Tensor, std: Tensor) -> None:
        self.split, self.target, self.mean, self.std = split, target, mean, std

    def __len__(self) -> int:
        return len(self.target)

    @property
    def lengths(self) -> Tensor | None:
        """The items of each input (n,), None where all have the same number."""
        return getattr(self.split, "lengths", None)

    @property
    def preprocess(self) -> Any:
        """The function from stored bytes to inputs, where they are images."""
        return getattr(self.split, "preprocess", None)

    @property
    def scale(self) -> Any:
        """The mean and standard deviation of each column of the inputs, where they are standardized."""
        return getattr(self.split, "scale", None)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the inputs `order` (B,) with their targets (B, T)."""
        return replace(self.split.batch(order, key), target=self.target[order])


class Sliced:
    """Another split with a slice for each sample. slice: (n,) int64."""

    def __init__(self, split: Any, slices: Tensor) -> None:
        self.split, self.slice = split, slices
        # From Python 3.12 on, `isinstance` with a protocol looks members up without `__getattr__`.
        for name in _PROTOCOL_MEMBERS:
            if hasattr(split, name):
                setattr(self, name, getattr(split, name))

    def __len__(self) -> int:
        return len(self.slice)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask before there is a split.
        if name == "split":
            raise AttributeError(name)
        return getattr(self.split, name)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the samples `order` (B,) with their slices (B,)."""
        return replace(self.split.batch(order, key), slice=self.slice[order])


def varies(deviation: float, mean: float) -> bool:
    """Return whether a standard deviation is more than a rounding error of equal values with this mean."""
    return deviation > 1e-12 * abs(mean)  # float64 rounds to 1e-16 of the mean; sums of many values to more


def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation (F,) of each column of values (n, F), NaN left out."""
    mean = values.nanmean(0)
    return mean, (values - mean).square().nanmean(0).sqrt()


def input_deviation(mean: Tensor, deviation: Tensor, names: Sequence[str], things: str) -> Tensor:
    """Return the divisors of inputs: their standard deviation, and 1 for a column that does not vary.

    Logs the number of such columns. Raises UserError for a column without a value, and where no column varies.

    mean, deviation: (F,) or (1, ..., F) of the training split; names: F, of the columns
    things: the columns as messages call them, "columns" or "channels"
    """
    pairs = list(zip(names, deviation.flatten().tolist(), mean.flatten().tolist(), strict=True))
    empty = [name for name, _, level in pairs if math.isnan(level)]
    if empty:
        raise UserError(f"{things} without a value in the training split: {fold(empty)}; leave them out")
    constant = [name for name, size, level in pairs if not varies(size, level)]
    if len(constant) == len(pairs):
        raise UserError(f"all {things} have one value in the training split, nothing to learn from: {fold(constant)}")
    if not constant:
        return deviation
    log.warning(
        "%d of %d %s have one value in the training split, which is subtracted, and are divided by 1: %s",
        *(len(constant), len(pairs), things, fold(constant)),
    )
    kept = torch.tensor([varies(size, level) for _, size, level in pairs]).view_as(deviation)
    return deviation.where(kept, 1.0)


def target_moments(values: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the `column_moments` of targets. Raises UserError for a target that does not vary, which teaches nothing.

    values: (n, T) float64 of the training split, NaN where a value is missing; names: T, of the targets
    """
    mean, deviation = column_moments(values)
    for name, size, level in zip(names, deviation.tolist(), mean.tolist(), strict=True):
        if not varies(size, level):
            raise UserError(f"the target {name} has one value or none in the training split; leave it out")
    return mean, deviation


def with_values(splits: Splits, values: Sequence[Tensor], names: Sequence[str]) -> Splits:
    """Return the splits with real-valued targets, standardized by `target_moments`, which raises UserError.

    values: of each split (n, T) float64, NaN where a value is missing; names: T, of the targets
    """
    mean, std = target_moments(values[0], names)
    parts = []
    for split, target in zip(splits, values, strict=True):
        parts.append(WithTargets(split, ((target - mean) / std).float(), mean, std))
    return Splits(*parts)


def with_labels(splits: Splits, labels: Sequence[Tensor], names: Sequence[str]) -> Splits:
    """Return the splits with labels, 0 or 1 each. Raises UserError for a label that does not vary in training.

    labels: of each split (n, T) float64 of 0 and 1, NaN where it is not known; names: T, of the labels
    """
    train = labels[0]
    # A label that is not known must not count as one of both values.
    lowest = train.nan_to_num(1).amin(0)
    highest = train.nan_to_num(0).amax(0)
    for name, low, high in zip(names, lowest, highest, strict=True):
        if not low < high:
            raise UserError(f"the label {name} is there in all training samples or in none; leave it out")
    zeros, ones = torch.zeros(train.shape[1]), torch.ones(train.shape[1])
    parts = [WithTargets(split, target.float(), zeros, ones) for split, target in zip(splits, labels, strict=True)]
    return Splits(*parts)
