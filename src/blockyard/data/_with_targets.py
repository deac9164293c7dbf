"""Splits whose samples get another target: real values standardized by the training split, and slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from blockyard.contracts import Batch, Split, Splits
from blockyard.errors import UserError


class WithTargets:
    """The inputs of another split with real-valued targets (n, T), NaN where one is missing.

    mean, std: (T,) of the training split, in the units of the data, by which targets are standardized
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
        """How stored bytes become inputs, where they are images."""
        return getattr(self.split, "preprocess", None)

    @property
    def scale(self) -> Any:
        """The mean and standard deviation of each column of the inputs, where they are standardized."""
        return getattr(self.split, "scale", None)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the inputs `order` (B,) with their targets (B, T)."""
        return replace(self.split.batch(order, key), target=self.target[order])


class Sliced:
    """Another split with a slice for each sample. slice: (n,) int64."""

    def __init__(self, split: Any, slices: Tensor) -> None:
        self.split, self.slice = split, slices

    def __len__(self) -> int:
        return len(self.slice)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask before there is a split.
        if name == "split":
            raise AttributeError(name)
        return getattr(self.split, name)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the samples `order` (B,) with their slices (B,)."""
        return replace(self.split.batch(order, key), slice=self.slice[order])


def with_values(splits: Splits, values: Sequence[Tensor], names: Sequence[str]) -> Splits:
    """Returns the splits with real-valued targets, standardized. Raises UserError for one that does not vary.

    values: of each split (n, T) float64, NaN where one is missing; names: T, of the targets
    """
    mean = values[0].nanmean(0)  # (T,)
    std = (values[0] - mean).square().nanmean(0).sqrt()
    for name, size, level in zip(names, std.tolist(), mean.tolist(), strict=True):
        if not size > 1e-12 * max(1.0, abs(level)):
            raise UserError(f"the target {name} has one value or none in the training split; leave it out")
    standardized = [((each - mean) / std).float() for each in values]
    return Splits(*(WithTargets(split, own, mean, std) for split, own in zip(splits, standardized, strict=True)))
