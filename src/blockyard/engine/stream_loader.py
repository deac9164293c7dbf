"""Training batches of a stream: the position of a run is part of its checkpoint, because a stream has no index.

Source: the position that comes with each batch is that of torchdata's StatefulDataLoader; an order that does not depend
    on the number of processes is "elastic determinism" of MosaicML's StreamingDataset (`num_canonical_nodes`)
Reference: datasets.distributed.split_dataset_by_node, part by part

              step 0        step 1        step 2        two nodes of two workers each, four samples in a step
    node 0   part 0: a b   part 1: i j   part 0: c d    a process of two reads node 0, the other one node 1;
    node 1   part 2: e f   part 3: m n   part 2: g h    a worker of two reads the even steps, the other one the odd

A worker reads ahead of the training. The position that a checkpoint takes is that behind the last step of the training.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, Objective, Streamed, StreamItem, StreamPosition
from blockyard.engine.callbacks.base import RunCallback, RunState, StateDict
from blockyard.engine.faults.interrupts import Interrupts, leave_signals_to_main
from blockyard.engine.loader import BatchDataset, Layout, TrainingLoader
from blockyard.errors import UserError

_KEPT = 4  # positions of a part; Lightning takes a batch or two from the loader before it trains on them

Positions = dict[int, StreamPosition]  # by part


class StreamStep(NamedTuple):
    """The micro-batches of a step in one process, and the positions behind it of the parts that were read for it."""

    batches: list[Batch]
    positions: Positions


class StreamBatches(BatchDataset):
    """A stream as prepared steps by number, read in increasing order.

    A process reads its share of the nodes, or all of them where a batch cannot be made of the share alone: the nodes do
    not divide among the processes, samples are mixed with others of the step, or the numbers of targets differ.
    """

    split: Streamed

    def __init__(self, split: Streamed, layout: Layout, objective: Objective, *, weighted: bool = False) -> None:
        super().__init__(split, layout, objective, weighted=weighted)
        needs_all = self.weighted or objective.mixes or split.nodes % layout.readers != 0
        nodes = range(split.nodes)
        if layout.readers > 1 and not needs_all:
            nodes = nodes[layout.rank % layout.readers :: layout.readers]
        self.nodes = nodes
        self.seek({}, 0)

    @property
    def parts(self) -> list[int]:
        """Return the parts that this process reads."""
        workers = range(self.split.node_workers)
        return [node * self.split.node_workers + worker for node in self.nodes for worker in workers]

    def seek(self, positions: Mapping[int, StreamPosition], step: int) -> None:
        """Go on at step number `step` of the run. positions: of each part, behind the steps before it."""
        self.positions = {part: positions[part] for part in self.parts if part in positions}
        self.first_step = step
        self._readers: dict[int, _PartReader] = {}
        self._samples: dict[int, Any] = {}

    def _batch(self, number: int) -> StreamStep:  # type: ignore[override]
        """Return step number `number` of the run."""
        worker = number % self.split.node_workers
        self._samples = {}
        positions = {}
        for node in self.nodes:
            part = node * self.split.node_workers + worker
            items = self._reader(part, worker).step(number)
            # The samples of a step by their index in it: they are dealt to the nodes one by one.
            for row, item in enumerate(items):
                self._samples[row * self.split.nodes + node] = item.sample
            positions[part] = items[-1].position
        micro_batches = self.layout.micro_batches
        first = number * micro_batches
        batches = []
        for micro_batch in range(micro_batches):
            batches.append(super()._batch(first + micro_batch))
        return StreamStep(batches, positions)

    def _reader(self, part: int, worker: int) -> _PartReader:
        if part not in self._readers:
            items = self.split.read(part, self.layout.seed_of_order, self.positions.get(part))
            wait = (worker - self.first_step) % self.split.node_workers
            self._readers[part] = _PartReader(items, self.first_step + wait, self.split, self.layout)
        return self._readers[part]

    def _order(self, step: int, shard: int, shards: int) -> Tensor:
        first = step * self.layout.batch_size
        return torch.arange(first, first + self.layout.samples_of(step))[shard::shards]

    def _ready(self, order: Tensor, step: int) -> Batch:
        layout = self.layout
        numbers = order.tolist()
        first = step * layout.batch_size
        batch = self.split.collate([self._samples[number - first] for number in numbers], numbers)
        batch.sample = order
        if layout.growth is not None:
            batch = layout.growth.cut(batch, step)
        return self.objective.ready(batch, layout.draw_key(step))


class _PartReader:
    """The samples of a part step by step. next_step: the step that takes its next samples."""

    def __init__(self, items: Iterator[StreamItem], next_step: int, split: Streamed, layout: Layout) -> None:
        self.items, self.next_step, self.split, self.layout = items, next_step, split, layout

    def step(self, number: int) -> list[StreamItem]:
        """Return the samples of step `number`; those of steps before it, which another worker has, are dropped."""
        assert number >= self.next_step, "a stream is read forwards"
        items: list[StreamItem] = []
        while self.next_step <= number:
            items = list(islice(self.items, self.layout.samples_of(self.next_step) // self.split.nodes))
            self.next_step += self.split.node_workers
        return items


class StreamLoader(TrainingLoader):
    """The batches of a run that reads a stream. Its sampler has the numbers of steps rather than of batches."""

    dataset: StreamBatches

    def __init__(self, dataset: StreamBatches, **settings: Any) -> None:
        super().__init__(dataset, **settings)
        # By part: steps, and the position behind each.
        self._behind: defaultdict[int, deque[tuple[int, StreamPosition]]] = defaultdict(lambda: deque(maxlen=_KEPT))

    @staticmethod
    def start_worker(worker: int) -> None:
        """Handle signals as any worker of a run, and let no dataset divide itself among workers once more."""
        leave_signals_to_main(worker)
        # Iterable datasets that know workers, such as those of `datasets`, would yield a share of the part.
        torch.utils.data._utils.worker._worker_info = None
        assert torch.utils.data.get_worker_info() is None

    def _get_iterator(self) -> Any:
        return self._batches(super()._get_iterator())

    def _batches(self, steps: Iterator[StreamStep]) -> Iterator[Batch]:
        for number, step in zip(self.sampler, steps, strict=True):
            for part, position in step.positions.items():
                self._behind[part].append((number, position))
            yield from step.batches

    def _read_here(self, number: int, interrupts: Interrupts) -> Any:
        self.dataset.seek(self.positions(number), number)
        return super()._read_here(number, interrupts)

    def positions(self, steps: int) -> Positions:
        """Return where the parts that this process reads go on after so many steps of the run."""
        positions = dict(self.dataset.positions)
        for part, behind in self._behind.items():
            for number, position in behind:
                if number < steps:
                    positions[part] = position
        return positions


class StreamState(RunCallback):
    """Saves the position of a run in its stream, and restores it. Part of every run with a stream, and of no config."""

    incidental: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.loader: StreamLoader | None = None  # set when the run knows its first step
        self._state: RunState | None = None

    def on_run_start(self, state: RunState) -> None:
        """Note the run, whose step is saved."""
        self._state = state

    def state_dict(self) -> StateDict:
        """Return the step, and the position of each part of all processes behind it. All of them must call it."""
        if self._state is None or self.loader is None:
            return {"step": 0, "positions": {}}
        step = self._state.step
        return {"step": step, "positions": _of_all_processes(self.loader.positions(step))}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Go on where `state_dict` says."""
        assert self.loader is not None, "a checkpoint is loaded into a run that is set up"
        self.loader.dataset.seek(state_dict["positions"], state_dict["step"])


def _of_all_processes(positions: Positions) -> Positions:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return positions
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, positions)
    merged: Positions = {}
    for one in gathered:
        merged |= one
    return merged


def check_stream(split: Streamed, layout: Layout) -> None:
    """Raise UserError where the samples of a step do not divide among the nodes, or steps need an index."""
    if layout.batch_size % split.nodes:
        raise UserError(
            f"data.nodes={split.nodes}: data.batch_size={layout.batch_size} samples do not divide among them; use a "
            f"multiple of {split.nodes}"
        )
    if layout.growth is not None and layout.growth.batch.start % split.nodes:
        raise UserError(
            f"data.nodes={split.nodes}: the {layout.growth.batch.start} samples of the first steps do not divide among "
            f"them; use a multiple of {split.nodes}"
        )
    if layout.overfit:
        raise UserError(
            f"trainer.overfit={layout.overfit} repeats batches by their number, and a stream has none; use "
            "trainer.overfit=0, or a file of few samples"
        )


def stream_remarks(dataset: StreamBatches, workers: int) -> Sequence[str]:
    """Return what is read more often than once, a sentence each. workers: of the loader of each process"""
    split, readers = dataset.split, dataset.layout.readers
    remarks = []
    if readers > 1 and len(dataset.nodes) == split.nodes:
        reason = f"data.nodes={split.nodes} does not divide among them"
        if split.nodes % readers == 0:
            reason = "the loss of a sample depends on the others of its step"
        remarks.append(f"each of {readers} processes reads the whole stream and takes its share: {reason}")
    if workers > 1 and split.node_workers % workers:
        remarks.append(
            f"each of {workers} loader workers reads all that its process reads and takes its steps, because "
            f"data.node_workers={split.node_workers} does not divide among them"
        )
    return remarks
