"""A stream as a training split: the parts that it is divided into, and their number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Batch, StreamItem, StreamPosition

Parts = Annotated[int, Ge(1), Le(1_024)]


@dataclass(kw_only=True)
class StreamParts:
    """Options of data that are streamed.

    Options:
        nodes: parts of a stream that give equally many samples to each step, and are divided among the processes
        node_workers: parts of each node, which steps take by turns and the loader workers of a process divide
    """

    nodes: Parts = 1
    node_workers: Parts = 1


class StreamSplit(ABC):
    """A training split of `nodes` times `node_workers` parts, each read in its own order.

    size: samples that an epoch is taken to have
    """

    def __init__(self, size: int, nodes: int, node_workers: int) -> None:
        self.size, self.nodes, self.node_workers = size, nodes, node_workers

    def __len__(self) -> int:
        return self.size

    @property
    def parts(self) -> int:
        """Return the number of parts."""
        return self.nodes * self.node_workers

    @abstractmethod
    def read(self, part: int, seed: int, position: StreamPosition | None) -> Iterator[StreamItem]:
        """Yield the samples of a part without end, from a position on, each with the position behind it."""

    @abstractmethod
    def collate(self, items: Sequence[Any], numbers: Sequence[int]) -> Batch:
        """Return samples as a batch."""

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return as many samples as `order` has: the first ones, because a stream has no index.

        Probes and baselines take them. Training reads the parts.
        """
        items = [item.sample for item in islice(self.read(0, 0, None), len(order))]
        return self.collate(items, range(len(items)))
