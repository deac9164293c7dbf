"""Splits of an array, a matrix of rows that are taken batch by batch: one that is mapped stays on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, ImageTokenizer, SimpleModel, Split, Splits, Tokenizer
from blockyard.data.files.arrays import channels_are_last
from blockyard.data.splits.augment import Augment
from blockyard.data.splits.image_tokens import token_splits
from blockyard.data.splits.images import Moments, Preprocess
from blockyard.data.splits.simple_models import equally_spaced, majority_model
from blockyard.data.splits.split import input_deviation

CHUNK = 4096  # rows that are read at a time
SAMPLE = 10_000  # images that give the channel statistics, and from which a tokenizer learns


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array. values: (all rows, ...); index: (n,) int64, those of this part."""

    values: np.ndarray
    index: Tensor

    def take(self, order: Tensor) -> Tensor:
        """Return the rows `order` (B,) of this part, (B, ...)."""
        return torch.from_numpy(np.ascontiguousarray(self.values[self.index[order].numpy()]))

    def chunks(self) -> Iterator[Tensor]:
        """Yield all rows in order, a few thousand at a time."""
        yield from (self.take(order) for order in torch.arange(len(self.index)).split(CHUNK))


class ArraySplit:
    """One split of an array.

    target: (n,) int64 classes, (n, N) int64 token ids, or None; scale: mean and standard deviation.

    class_counts: (V,) int64 of the training split, where targets are classes
    """

    def __init__(
        self, rows: ArrayRows, target: Tensor | None, scale: tuple[Tensor, Tensor] | None, counts: Tensor | None
    ) -> None:
        self.rows, self.target, self.scale = rows, target, scale
        if counts is not None:
            self.class_counts = counts

    def __len__(self) -> int:
        return len(self.rows.index)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the rows `order` (B,): float32, standardized, or int64 without a scale. Nothing is augmented."""
        values = self.rows.take(order)
        inputs = values.long() if self.scale is None else ((values.double() - self.scale[0]) / self.scale[1]).float()
        return Batch(inputs, None if self.target is None else self.target[order])


class LabelledArraySplit(ArraySplit):
    """A split of rows with a class each, and the most frequent class beside it."""

    def baselines(self) -> Iterator[SimpleModel]:
        """Yield the model of the most frequent class."""
        yield majority_model(self.class_counts)


class ImageArraySplit:
    """A split of an array of images of bytes, (n, C, height, width) or without C. target: (n,) int64."""

    def __init__(self, rows: ArrayRows, target: Tensor, preprocess: Preprocess, *, last: bool) -> None:
        self.rows, self.target, self.preprocess, self.last = rows, target, preprocess, last

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, C, height, width) and target (B,); `key` None disables augmentation."""
        images = channels_first(self.rows.take(order), last=self.last)
        return Batch(self.preprocess(images, order, key), self.target[order])


def channels_first(images: Tensor, *, last: bool) -> Tensor:
    """Return images (B, height, width), (B, C, height, width), or with C last, as (B, C, height, width)."""
    if images.ndim == 3:
        return images[:, None]
    if last:
        return images.permute(0, 3, 1, 2).contiguous()
    return images


def moments(rows: ArrayRows, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over the rows and `axes`, double, NaN left out; shape (1, ...).

    The mean of the first rows is subtracted before summing: with a mean much larger than the deviation the sums of
    squares cancel.
    """
    total, squares, count = (torch.zeros(()) for _ in range(3))
    first: Tensor | None = None
    for chunk in rows.chunks():
        first = chunk.double().nanmean(axes, keepdim=True).nan_to_num() if first is None else first
        values, there = (chunk.double() - first).nan_to_num(), (~chunk.double().isnan()).double()
        total = total + values.sum(axes, keepdim=True)
        squares = squares + values.square().sum(axes, keepdim=True)
        count = count + there.sum(axes, keepdim=True)
    assert first is not None
    mean = total / count
    return first + mean, (squares / count - mean.square()).clamp_min(0).sqrt()


def scale_of(rows: ArrayRows, name: str) -> tuple[Tensor, Tensor]:
    """Return the `moments` by which values are standardized. Raises UserError as `input_deviation` does.

    name: of the array
    """
    mean, std = moments(rows, tuple(range(rows.values.ndim - 1)))
    names = [f"{name}[{column}]" for column in range(mean.numel())]
    return mean, input_deviation(mean, std, names, "columns")


def array_splits(
    rows: Sequence[ArrayRows],
    targets: Sequence[Tensor | None],
    scale: tuple[Tensor, Tensor] | None,
    counts: Tensor | None,
) -> Splits:
    """Return the splits of an array, with `targets` of each. scale, counts: as in `ArraySplit`."""
    kind: type[ArraySplit] = ArraySplit if counts is None else LabelledArraySplit
    splits: list[Split] = [kind(part, target, scale, counts) for part, target in zip(rows, targets, strict=True)]
    return Splits(*splits)


def image_array_splits(
    rows: Sequence[ArrayRows], targets: Sequence[Tensor], augment: Augment, tokenizer: Tokenizer, spec: DataSpec
) -> Splits:
    """Return the splits of an array of images, of token ids where the tokenizer makes them.

    Others are normalized by the training images. Only those are augmented.
    """
    last = channels_are_last(rows[0].values.shape[1:])
    count = len(rows[0].index)
    sample = equally_spaced(count, SAMPLE)
    images = channels_first(rows[0].take(sample), last=last)
    scale = None if isinstance(tokenizer, ImageTokenizer) else Moments.of(images)
    preprocess = (Preprocess(scale, part_augment) for part_augment in (augment, Augment(), Augment()))
    splits = [ImageArraySplit(*part, last=last) for part in zip(rows, targets, preprocess, strict=True)]
    if isinstance(tokenizer, ImageTokenizer):
        return token_splits(splits, tokenizer, images, spec)
    return Splits(*splits)
