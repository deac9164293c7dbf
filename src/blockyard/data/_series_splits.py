"""Splits of series, and the nearest neighbour that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch, SimpleModel
from blockyard.data._simple_models import equally_spaced, majority_model, sampled


@dataclass(frozen=True)
class Series:
    """values: (n, longest, C), standardized, NaN where missing and behind the end; lengths, target: (n,) int64."""

    values: Tensor
    lengths: Tensor
    target: Tensor

    def select(self, indices: Tensor) -> Series:
        """Returns the series `indices` (m,)."""
        return Series(self.values[indices], self.lengths[indices], self.target[indices])


class SeriesSplit:
    """One split: inputs (B, steps, C), target (B,), and lengths (B,) where series have different lengths.

    class_counts: (V,) int64, the series of each class in the training split
    """

    def __init__(self, series: Series, train: Series, classes: int, *, variable: bool) -> None:
        self.series, self.train, self.variable = series, train, variable
        self.class_counts = train.target.bincount(minlength=classes)

    def __len__(self) -> int:
        return len(self.series.target)

    @property
    def lengths(self) -> Tensor:
        """The steps of each series, (n,)."""
        return self.series.lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the series `order` (B,), as long as the longest of them."""
        lengths = self.series.lengths[order]
        values = self.series.values[order]
        if not self.variable:
            return Batch(values, self.series.target[order])
        return Batch(values[:, : int(lengths.max())], self.series.target[order], lengths=lengths)

    def baselines(self) -> Iterator[SimpleModel]:
        """Yields the models of the most frequent class and of the nearest training series."""
        yield majority_model(self.class_counts)
        count, classes = len(self.train.target), len(self.class_counts)
        yield SimpleModel(
            "nearest",
            lambda: lambda order: nearest(self.train, self.series.select(order), classes),
            sampled("fitted", min(count, MOST_NEIGHBOURS), count),
            ("loss",),
        )


def nearest(train: Series, series: Series, classes: int) -> Tensor:
    """Returns logits (n, V): for each class minus the distance to its nearest training series.

    Series are resampled linearly to the longest, and missing values are zero, the mean.
    """
    count = len(train.target)
    chosen = equally_spaced(count, MOST_NEIGHBOURS)
    references, own = _resampled(train, chosen), _resampled(series, torch.arange(len(series.target)))
    distance = torch.cdist(own, references)  # (n, m)
    result = torch.full((len(own), classes), -torch.inf)
    for number in range(classes):
        members = train.target[chosen] == number
        if members.any():
            result[:, number] = -distance[:, members].min(1).values
    return result


def _resampled(series: Series, index: Tensor) -> Tensor:
    """(n, longest C), each series stretched over all steps."""
    longest = series.values.shape[1]
    step = torch.linspace(0, 1, longest) * (series.lengths[index, None] - 1)  # (n, longest)
    low, values = step.floor().long(), series.values[index].nan_to_num()
    share = (step - low)[..., None]
    high = torch.minimum(low + 1, series.lengths[index, None] - 1)
    batch = torch.arange(len(index))[:, None]
    return (values[batch, low] * (1 - share) + values[batch, high] * share).flatten(1)


MOST_NEIGHBOURS = 2000  # training series that `nearest` compares with, at equal distances
