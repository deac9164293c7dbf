"""Splits of datasets of the user's own: with a length in the order of all data, without one in their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset

from blockyard.contracts import Batch
from blockyard.data._order import mix
from blockyard.data._own_samples import Reader
from blockyard.data._photo_augment import seeded
from blockyard.errors import UserError


class Own(NamedTuple):
    """A dataset of the user's. name: of the option; collate: its own function from items to a batch, or None."""

    name: str
    dataset: Any
    collate: Any = None

    @property
    def streams(self) -> bool:
        """Whether it only yields samples in its own order."""
        return isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__")

    def __len__(self) -> int:
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError) as error:
            raise UserError(f"{self.name}: {type(self.dataset).__name__} has no length; define __len__") from error


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
