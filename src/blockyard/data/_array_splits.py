"""Splits of one array: rows are taken batch by batch, so that an array that is mapped stays on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data._class_baselines import majority
from blockyard.data._images import Preprocess

CHUNK = 4096  # rows that are read at a time


@dataclass(frozen=True)
class Rows:
    """Rows of an array. values: (all rows, ...); index: (n,) int64, those of this part."""

    values: np.ndarray
    index: Tensor

    def take(self, order: Tensor) -> Tensor:
        """Returns the rows `order` (B,) of this part, (B, ...)."""
        return torch.from_numpy(np.ascontiguousarray(self.values[self.index[order].numpy()]))

    def chunks(self) -> Iterator[Tensor]:
        """Yields all rows in order, a few thousand at a time."""
        yield from (self.take(order) for order in torch.arange(len(self.index)).split(CHUNK))


class ArraySplit:
    """One split. target: (n,) int64 classes, (n, N) int64 token ids, or None; scale: mean and standard deviation.

    class_counts: (V,) int64 of the training split, where targets are classes
    """

    def __init__(
        self, rows: Rows, target: Tensor | None, scale: tuple[Tensor, Tensor] | None, counts: Tensor | None
    ) -> None:
        self.rows, self.target, self.scale = rows, target, scale
        if counts is not None:
            self.class_counts = counts

    def __len__(self) -> int:
        return len(self.rows.index)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the rows `order` (B,): float32, standardized, or int64 without a scale. Nothing is augmented."""
        values = self.rows.take(order)
        inputs = values.long() if self.scale is None else ((values.double() - self.scale[0]) / self.scale[1]).float()
        return Batch(inputs, None if self.target is None else self.target[order])


class LabelledArraySplit(ArraySplit):
    """A split of rows with a class each, and the most frequent class beside it."""

    def baselines(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the logits (n, V) of the most frequent class."""
        yield "majority", majority(self.class_counts, len(self))


class ImageArraySplit:
    """A split of images of bytes, (n, C, height, width) or without C. target: (n,) int64."""

    def __init__(self, rows: Rows, target: Tensor, preprocess: Preprocess, *, last: bool) -> None:
        self.rows, self.target, self.preprocess, self.last = rows, target, preprocess, last

    def __len__(self) -> int:
        return len(self.target)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns inputs float32 (B, C, height, width) and target (B,); `key` None disables augmentation."""
        images = channels_first(self.rows.take(order), last=self.last)
        return Batch(self.preprocess(images, order, key), self.target[order])


def channels_first(images: Tensor, *, last: bool) -> Tensor:
    """Returns images (B, height, width), (B, C, height, width), or with C last, as (B, C, height, width)."""
    if images.ndim == 3:
        return images[:, None]
    return images.permute(0, 3, 1, 2).contiguous() if last else images


def moments(rows: Rows, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation over the rows and `axes`, double, NaN left out; shape (1, ...)."""
    total, squares, count = (torch.zeros(()) for _ in range(3))
    for chunk in rows.chunks():
        values, there = chunk.double().nan_to_num(), (~chunk.double().isnan()).double()
        total = total + values.sum(axes, keepdim=True)
        squares = squares + values.square().sum(axes, keepdim=True)
        count = count + there.sum(axes, keepdim=True)
    mean = total / count
    return mean, (squares / count - mean.square()).clamp_min(0).sqrt()
