"""Samples of a dataset of the user's own: what an item is, and items as batches that repeat exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data._decode import to_tensor
from blockyard.data._order import mix
from blockyard.data._photo_augment import seeded
from blockyard.errors import UserError

Pair = tuple[Tensor, Tensor | None]


@contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seeds the generators of torch, NumPy and Python inside, and puts them back as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@dataclass(frozen=True)
class Reader:
    """How items become samples.

    name: of the option that names the dataset, for messages; inputs, target: keys of items that are mappings
    classes: number of classes, which bounds targets; None where targets are no classes, or not known yet
    collate: the user's own function from items to a batch, or None
    """

    name: str
    inputs: str
    target: str
    classes: int | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def pair(self, item: Any, where: str) -> Pair:
        """Returns inputs and target of an item, or of a collated batch. Raises UserError for anything else."""
        if isinstance(item, Mapping):
            if self.inputs not in item:
                raise UserError(f"{where} has the keys {', '.join(map(str, item))}; set data.inputs to one of them")
            inputs, target = item[self.inputs], item.get(self.target)
        elif isinstance(item, tuple | list) and len(item) == 2:
            inputs, target = item
        else:
            inputs, target = item, None
        values = _tensor(inputs, f"{where}, its input")
        return values, None if target is None else _tensor(target, f"{where}, its target")

    def batch(self, items: Sequence[Any], numbers: Sequence[int]) -> Batch:
        """Returns items as a batch. Raises UserError naming the sample that does not fit."""
        if self.collate is not None:
            inputs, target = self.pair(self.collate(list(items)), f"{self.name}: a batch of its collate_fn")
        else:
            pairs = [self.pair(item, f"{self.name}[{n}]") for item, n in zip(items, numbers, strict=True)]
            inputs = self._stacked([pair[0] for pair in pairs], numbers, "input")
            targets = [pair[1] for pair in pairs if pair[1] is not None]
            target = self._stacked(targets, numbers, "target") if len(targets) == len(pairs) else None
        if target is not None:
            self._check_target(target, numbers)
            if target.is_floating_point() and target.ndim == 1:
                target = target[:, None]  # one real value of each sample
        return Batch(inputs, target)

    def _stacked(self, values: list[Tensor], numbers: Sequence[int], what: str) -> Tensor:
        for value, number in zip(values, numbers, strict=True):
            if (value.shape, value.dtype) != (values[0].shape, values[0].dtype):
                first, own = (
                    (tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in (values[0], value)
                )
                raise UserError(
                    f"{self.name}[{number}]: its {what} is {own[1]} of shape {own[0]}, that of [{numbers[0]}] is "
                    f"{first[1]} of shape {first[0]}; make them alike"
                )
        return torch.stack(values)

    def _check_target(self, target: Tensor, numbers: Sequence[int]) -> None:
        if target.is_floating_point():
            bad = ~target.isfinite()
        elif self.classes is not None and target.ndim == 1:
            bad = (target < 0) | (target >= self.classes)
        else:
            return
        if bad.any():
            row = int(bad.flatten(1).any(1).nonzero()[0]) if bad.ndim > 1 else int(bad.nonzero()[0])
            known = "not finite" if target.is_floating_point() else f"no class from 0 to {self.classes} - 1"
            raise UserError(f"{self.name}[{numbers[row]}]: the target {target[row].tolist()} is {known}")


class MapSplit:
    """Samples of a dataset with a length. index: (n,) int64, those of this split.

    Each item is read with generators seeded by (key, its number), so that random transforms repeat exactly.
    """

    def __init__(self, dataset: Any, index: Tensor, reader: Reader) -> None:
        self.dataset, self.index, self.reader = dataset, index, reader

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the samples `order` (B,). `key` None draws the same random numbers every time."""
        numbers = self.index[order].tolist()
        return self.reader.batch([self._item(number, key) for number in numbers], numbers)

    def _item(self, number: int, key: int | None) -> Any:
        try:
            with seeded_everywhere(mix("item", "evaluation" if key is None else key, number)):
                return self.dataset[number]
        except Exception as error:  # a user's own class may fail in any way
            raise UserError(f"{self.reader.name}[{number}] cannot be read: {type(error).__name__}: {error}") from error


class StreamSplit:
    """Samples in the order in which an iterable dataset yields them, whatever is asked for, and then from its start.

    size: samples of an epoch. Batches without a key, such as those of probes, are the first ones.
    """

    def __init__(self, dataset: Any, size: int, reader: Reader) -> None:
        self.dataset, self.size, self.reader = dataset, size, reader
        self._items: Iterator[Any] = iter(())
        self._read = 0

    def __len__(self) -> int:
        return self.size

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the next B samples."""
        if key is None:
            items = first_items(self.dataset, len(order), self.reader.name)
            return self.reader.batch(items, range(len(items)))
        items = []
        while len(items) < len(order):
            try:
                items.append(next(self._items))
                self._read += 1
            except StopIteration:
                first_items(self.dataset, 1, self.reader.name)  # an empty one would be asked for ever
                self._items = iter(self.dataset)
        return self.reader.batch(items, range(self._read - len(items), self._read))


def first_items(dataset: Any, count: int, name: str) -> list[Any]:
    """Returns the first items of an iterable dataset, fewer where it ends. Raises UserError if it has none."""
    items = []
    for item in dataset:
        items.append(item)
        if len(items) == count:
            break
    if not items:
        raise UserError(f"{name} yields no samples")
    return items


def _tensor(value: Any, where: str) -> Tensor:
    """Returns a number, an array, a tensor or an image as float32 or int64; images of bytes from 0 to 1."""
    if isinstance(value, Tensor):
        made = value
    elif isinstance(value, np.ndarray | np.generic | int | float) and np.asarray(value).dtype.kind in "biuf":
        made = torch.from_numpy(np.array(value))
    elif hasattr(value, "getbands"):  # an image of Pillow
        made = to_tensor(value)
    else:
        raise UserError(f"{where} is a {type(value).__name__}; it should be a number, an array, a tensor or an image")
    if made.dtype == torch.uint8 and made.ndim >= 3:
        return made.float() / 255
    return made.float() if made.is_floating_point() else made.long()
