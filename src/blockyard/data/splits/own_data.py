"""Shared parts of data sets whose samples come from a class of the user's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from blockyard.contracts import (
    Batch,
    BatchSize,
    Count,
    DataSpec,
    Split,
    Splits,
    StreamItem,
    StreamPosition,
    Text,
    Tokenizer,
    Vocabulary,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import to_tensor
from blockyard.data.splits.augment import seeded_everywhere
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.simple_models import equally_spaced
from blockyard.data.splits.split import DrawnSplits
from blockyard.data.splits.streams import StreamParts, StreamSplit
from blockyard.errors import UserError, first_line

Pair = tuple[Tensor, Tensor | None]
SAMPLED = 32  # samples that the fingerprint reads
# The modality of inputs, by their numbers and the count of their axes.
MODALITIES = {("real", 3): "image", ("real", 2): "series", ("real", 1): "vector", ("whole", 1): "symbols"}
STREAM_LIMIT = (
    "is an iterable dataset: a resumed run reads it from the beginning of its epoch up to where it was, which is exact "
    "if it yields the same samples in the same order each time; it must not divide them among processes or workers "
    "itself, data.nodes and data.node_workers do"
)
CONTENT_LIMIT = f"whether the samples are those of the start is checked for {SAMPLED} of them when a run resumes"


@dataclass(kw_only=True, eq=False)
class OwnData(StreamParts, DrawnSplits, LoadedData):
    """Samples that are pairs (input, target), mappings, or inputs alone.

    Options:
        inputs: the key of the input, of samples that are mappings
        target: the key of the target, likewise
        classes: number of classes; null takes the dataset's attribute `classes`
        vocabulary: number of token ids of inputs that are whole numbers
        validation_fraction: share of the training samples that is the validation split, where none is given
        test_fraction: share of the training samples that is the test split, where none is given
        nodes: of an iterable dataset: parts that share each step, and that processes divide
        node_workers: likewise: parts of each node, which steps take by turns and loader workers divide
        batch_size: samples in a training step, over all processes
        eval_batch_size: samples in a validation or test step, over all processes
    """

    inputs: Text = "inputs"
    target: Text = "target"
    classes: Count | None = None
    vocabulary: Vocabulary | None = None
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256

    @abstractmethod
    def datasets(self) -> dict[str, Own]:
        """Make the user's datasets, by split: `train`, and others where there are some."""

    @cached_property
    def own(self) -> dict[str, Own]:
        """The datasets. Raises UserError for a class that cannot be built."""
        try:
            with torch.device("cpu"):  # a model may be under way on the meta device
                datasets = self.datasets()
        except UserError:
            raise
        except Exception as error:  # a user's own class may fail in any way
            raise UserError(f"the data cannot be built: {type(error).__name__}: {first_line(error)}") from error
        for dataset in datasets.values():
            if not dataset.streams and not len(dataset):
                raise UserError(f"{dataset.name} has no samples")
        if datasets["train"].streams and len(datasets) < 3:
            absent = " and ".join(name for name in ("validation", "test") if name not in datasets)
            raise UserError(f"{datasets['train'].name} is iterable and cannot be split; give it a {absent} dataset too")
        return datasets

    def missing(self) -> str | None:
        """Return why the datasets cannot be built, or None."""
        try:
            assert self.own
        except UserError as error:
            return str(error)
        return None

    def limits(self) -> tuple[str, ...]:
        """Return the limits of the user's class, a sentence each."""
        streams = [f"{dataset.name} {STREAM_LIMIT}" for dataset in self.own.values() if dataset.streams]
        return (*streams[:1], CONTENT_LIMIT)

    @cached_property
    def _first(self) -> Pair:
        """The first training sample."""
        with torch.device("cpu"):
            return self._read_first(self.own["train"])

    def _read_first(self, own: Own) -> Pair:
        reader = self._reader(own)
        if own.streams:
            return reader.pair(first_items(own.dataset, 1, own.name)[0], f"{own.name}[0]")
        batch = MapSplit(own.dataset, torch.arange(1), replace(reader, collate=None)).batch(torch.arange(1), None)
        return batch.inputs[0], None if batch.target is None else batch.target[0]

    @property
    def spec(self) -> DataSpec:
        """The specification of the first training sample; without a dataset, images of unknown classes."""
        if self.missing() is not None:
            return DataSpec("image", (1, 32, 32), target="class")
        return self._spec

    @cached_property
    def _spec(self) -> DataSpec:
        inputs, target = self._first
        shape = tuple(inputs.shape)
        name = self.own["train"].name
        numbers = "real" if inputs.is_floating_point() else "whole"
        if (numbers, inputs.ndim) not in MODALITIES:
            raise UserError(
                f"{name}[0]: an input of {numbers} numbers of shape {shape} is nothing known; "
                "images are (C, height, width), series (steps, C), vectors (F,), token ids (N,) of whole numbers"
            )
        data_spec = DataSpec(MODALITIES[numbers, inputs.ndim], shape)
        if data_spec.modality == "symbols":
            if self.vocabulary is None:
                raise UserError(f"{name} has token ids; set data.vocabulary to their number")
            data_spec = replace(data_spec, vocabulary=self.vocabulary)
        if target is None:
            return data_spec
        if target.is_floating_point():
            return replace(data_spec, target="values", values=tuple(target.shape) or (1,))
        if target.ndim:
            return replace(data_spec, target="symbols")
        # The attribute is a list of names, as in torchvision, or a number.
        names = getattr(self.own["train"].dataset, "classes", None)
        listed = list(names) if isinstance(names, list | tuple) else []
        count = self.classes or (len(listed) if isinstance(names, list | tuple) else names)
        if not isinstance(count, int):
            raise UserError(f"{name}[0] has a class, and the dataset has no attribute `classes`; set data.classes")
        class_names = tuple(map(str, listed)) if len(listed) == count else ()
        return replace(data_spec, target="class", classes=count, class_names=class_names)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Draw the splits that are not given, and read some samples for the fingerprint."""
        datasets = self.own
        train = datasets["train"]
        if not train.streams and (self.nodes, self.node_workers) != (1, 1):
            raise UserError(
                f"data.nodes={self.nodes} data.node_workers={self.node_workers}: {train.name} has an index and needs "
                "no parts; leave both out"
            )
        parts: dict[str, Split] = {}
        index = torch.arange(0 if train.streams else len(train))
        for name, share in (("test", self.test_fraction), ("validation", self.validation_fraction)):
            if name in datasets:
                parts[name] = self._split(datasets[name], name, None)
            else:
                index, held_out = self._held_out(index, round(share * len(train)), name)
                parts[name] = self._split(train, name, held_out)
        parts["train"] = self._split(train, "train", index)
        splits = Splits(**parts)
        self._fingerprint = sha256(content for split in splits for content in _contents(split))
        return splits

    def _held_out(self, index: Tensor, count: int, name: str) -> tuple[Tensor, Tensor]:
        if not 0 < count < len(index):
            raise UserError(
                f"{self.own['train'].name} has {len(self.own['train'])} samples, too few to draw a {name} split"
            )
        order = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(mix(name, self.split_seed)))]
        return order[count:].sort().values, order[:count].sort().values

    def _split(self, own: Own, name: str, index: Tensor | None) -> Split:
        number = Splits._fields.index(name)
        reader = self._reader(own, self.spec.classes)
        size = (self.train_size, self.validation_size, self.test_size)[number]
        if own.streams and name == "train":
            if size is None:
                raise UserError(f"{own.name} is iterable; set data.train_size to the samples of an epoch")
            return OwnStream(own.dataset, reader, size, self.nodes, self.node_workers)
        dataset = own.dataset
        if own.streams:  # an evaluation needs the same samples each time, so they are kept in memory
            dataset = first_items(own.dataset, size or -1, own.name)
        if index is None:
            index = torch.arange(len(dataset) if own.streams else len(own))
        return MapSplit(dataset, index[self.kept(number, len(index))], reader)

    def _reader(self, own: Own, classes: int | None = None) -> Reader:
        return Reader(own.name, self.inputs, self.target, classes, own.collate)


class Own(NamedTuple):
    """A dataset of the user's. name: of the option; collate: the user's function from items to a batch, or None."""

    name: str
    dataset: Any
    collate: Any = None

    @property
    def streams(self) -> bool:
        """Return whether the dataset only yields samples in an order of its own."""
        return isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__")

    def __len__(self) -> int:
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError) as error:
            raise UserError(f"{self.name}: {type(self.dataset).__name__} has no length; define __len__") from error


@dataclass(frozen=True)
class Reader:
    """Turns items into samples.

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
        """Return inputs and target of an item, or of a collated batch. Raises UserError for anything else."""
        if isinstance(item, Mapping):
            if self.inputs not in item:
                raise UserError(f"{where} has the keys {', '.join(map(str, item))}; set data.inputs to one of them")
            inputs = item[self.inputs]
            target = item.get(self.target)
        elif isinstance(item, tuple | list) and len(item) == 2:
            inputs, target = item
        else:
            inputs, target = item, None
        values = _tensor(inputs, f"{where}, its input")
        return values, None if target is None else _tensor(target, f"{where}, its target")

    def batch(self, items: Sequence[Any], numbers: Sequence[int]) -> Batch:
        """Return items as a batch. Raises UserError naming the sample that does not fit."""
        if self.collate is not None:
            inputs, target = self.pair(self.collate(list(items)), f"{self.name}: a batch of its collate_fn")
        else:
            values, targets = [], []
            for item, number in zip(items, numbers, strict=True):
                value, target = self.pair(item, f"{self.name}[{number}]")
                values.append(value)
                if target is not None:
                    targets.append(target)
            inputs = self._stacked(values, numbers, "input")
            target = self._stacked(targets, numbers, "target") if len(targets) == len(values) else None
        if target is not None:
            self._check_target(target, numbers)
            if target.is_floating_point() and target.ndim == 1:
                target = target[:, None]  # one real value of each sample
        return Batch(inputs, target)

    def _stacked(self, values: list[Tensor], numbers: Sequence[int], what: str) -> Tensor:
        first = values[0]
        for value, number in zip(values, numbers, strict=True):
            if (value.shape, value.dtype) != (first.shape, first.dtype):
                raise UserError(
                    f"{self.name}[{number}]: its {what} is {_described(value)}, that of [{numbers[0]}] is "
                    f"{_described(first)}; make them alike"
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
            row = int(bad.reshape(len(bad), -1).any(1).nonzero()[0])
            problem = "not finite" if target.is_floating_point() else f"no class from 0 to {self.classes} - 1"
            raise UserError(f"{self.name}[{numbers[row]}]: the target {target[row].tolist()} is {problem}")


class MapSplit:
    """Samples of a dataset with a length. index: (n,) int64, the samples of this split.

    Each item is read with generators seeded by (key, its number), so that random transforms repeat exactly.
    """

    def __init__(self, dataset: Any, index: Tensor, reader: Reader) -> None:
        self.dataset = dataset
        self.index = index
        self.reader = reader

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the samples `order` (B,). `key` None draws the same random numbers every time."""
        numbers = self.index[order].tolist()
        return self.reader.batch([self._item(number, key) for number in numbers], numbers)

    def _item(self, number: int, key: int | None) -> Any:
        try:
            with seeded_everywhere(mix("item", "evaluation" if key is None else key, number)):
                return self.dataset[number]
        except Exception as error:  # a user's own class may fail in any way
            raise UserError(f"{self.reader.name}[{number}] cannot be read: {type(error).__name__}: {error}") from error


class OwnStream(StreamSplit):
    """Samples as an iterable dataset yields them. Parts take them by turns, one each; after the last it begins again.

    A position is the number of samples that the dataset has yielded, and a resumed run reads and drops as many.
    """

    def __init__(self, dataset: Any, reader: Reader, size: int, nodes: int, node_workers: int) -> None:
        super().__init__(size, nodes, node_workers)
        self.dataset, self.reader = dataset, reader

    def read(self, part: int, seed: int, position: StreamPosition | None) -> Iterator[StreamItem]:
        """Yield the items of a part. `seed` has no effect: the order is the dataset's own."""
        epoch, start = 0, 0
        if position is not None:
            epoch, start = position["epoch"], position["yielded"]
        while True:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(epoch)
            yielded = 0
            for item in self.dataset:
                yielded += 1
                if yielded > start and (yielded - 1) % self.parts == part:
                    yield StreamItem(item, {"epoch": epoch, "yielded": yielded})
            if yielded < self.parts:
                raise UserError(
                    f"{self.reader.name} yields {yielded} samples; data.nodes={self.nodes} and "
                    f"data.node_workers={self.node_workers} need at least {self.parts}"
                )
            if yielded < start:
                raise UserError(
                    f"{self.reader.name} yields {yielded} samples, and the run had read {start}: it is not the same"
                )
            epoch, start = epoch + 1, 0

    def collate(self, items: Sequence[Any], numbers: Sequence[int]) -> Batch:
        """Return items as a batch."""
        return self.reader.batch(items, numbers)


def first_items(dataset: Any, count: int, name: str) -> list[Any]:
    """Return the first items of an iterable dataset, fewer where it ends. Raises UserError if it has none."""
    items = []
    for item in dataset:
        items.append(item)
        if len(items) == count:
            break
    if not items:
        raise UserError(f"{name} yields no samples")
    return items


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def _tensor(value: Any, where: str) -> Tensor:
    """Return a number, an array, a tensor or an image as float32 or int64; images of bytes from 0 to 1."""
    if isinstance(value, Tensor):
        tensor = value
    elif isinstance(value, np.ndarray | np.generic | int | float) and np.asarray(value).dtype.kind in "biuf":
        tensor = torch.from_numpy(np.array(value))
    elif hasattr(value, "getbands"):  # an image of Pillow
        tensor = to_tensor(value)
    else:
        raise UserError(f"{where} is a {type(value).__name__}; it should be a number, an array, a tensor or an image")
    if tensor.dtype == torch.uint8 and tensor.ndim >= 3:
        return tensor.float() / 255
    if tensor.is_floating_point():
        return tensor.float()
    return tensor.long()


def _contents(split: Split) -> list[Tensor | str]:
    """Return the length of a split, and some of its samples."""
    batch = split.batch(equally_spaced(len(split), SAMPLED), None)
    contents: list[Tensor | str] = [str(len(split)), batch.inputs]
    if isinstance(batch.target, Tensor):
        contents.append(batch.target)
    return contents
