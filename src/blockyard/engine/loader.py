"""Training batches by number: the loader keeps no order, only the number to start from.

One pass over the loader is the whole run rather than an epoch: the epoch and the step of a batch follow from its
number. Worker processes start once, and a resumed run begins in the middle of an epoch as easily as at its start.

Every batch leaves the loader ready for the model: samples taken, augmented, and passed through the objective's
`prepare`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from blockyard.contracts import Batch, Objective, Split, StepOrder
from blockyard.data.splits.order import draw_key, epoch_key, step_indices, steps_per_epoch, take
from blockyard.engine.faults.data_workers import StoppedWorkers
from blockyard.engine.faults.interrupts import GRACE, Interrupted, Interrupts, OverdueError, leave_signals_to_main
from blockyard.engine.growth import Growth
from blockyard.errors import UserError

_DEATH = 2.0  # seconds from a broken connection to the end of the process behind it, at most


@dataclass(frozen=True)
class Layout:
    """How steps, micro-batches and processes share the training data.

    A step consumes one global batch of `batch_size` samples, however many processes and micro-batches it is cut
    into. Neither changes the training, beyond the order of additions.

    seed: of augmentation and of the objective's draws; samples: in the training split; micro_batches: per step and
        process
    order_seed: of the order of the samples; None is `seed`
    context: every process reads all samples, and the model cuts the sequences among them
    limit: steps an epoch is cut to, or None; overfit: repeat the first so many batches
    group, lengths: how many batches are sorted by length together, and the lengths (samples,) int64; 0 and None for
        batches in random order
    classes: (samples,) int64, for epochs with equally many samples of each class; None for every sample once
    keyed: the order is computed index by index, because the samples are too many for a table of it
    growth: how many of its samples, and of their tokens, a step takes; None for all
    planned: the samples of each step, if the training split orders them itself; as many as `growth` says
    """

    seed: int
    samples: int
    batch_size: int
    micro_batches: int = 1
    rank: int = 0
    world: int = 1
    context: bool = False
    limit: int | None = None
    overfit: int = 0
    group: int = 0
    keyed: bool = False
    lengths: Tensor | None = field(default=None, repr=False, compare=False)
    classes: Tensor | None = field(default=None, repr=False, compare=False)
    growth: Growth | None = None
    planned: StepOrder | None = field(default=None, repr=False, compare=False)
    order_seed: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size % self.shards:
            raise UserError(
                f"data.batch_size={self.batch_size} does not divide into {self.readers} processes "
                f"times trainer.accumulate={self.micro_batches} micro-batches; use a multiple of {self.shards}"
            )

    @property
    def seed_of_order(self) -> int:
        """Return the seed of the order of the samples."""
        return self.seed if self.order_seed is None else self.order_seed

    @property
    def readers(self) -> int:
        """Return the number of processes that share the samples of a step."""
        return 1 if self.context else self.world

    @property
    def shards(self) -> int:
        """Return the number of micro-batches of a step over all processes."""
        return self.micro_batches * self.readers

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps in one epoch."""
        steps = steps_per_epoch(self.samples, self.batch_size)
        if self.overfit:
            return min(self.overfit, steps)
        if self.limit:
            return min(self.limit, steps)
        return steps

    def epoch(self, step: int) -> int:
        """Return the epoch of step number `step` of the run; all epochs of an overfit run are the first."""
        return 0 if self.overfit else step // self.steps_per_epoch

    def samples_of(self, step: int) -> int:
        """Return the number of samples of step number `step` of the run, over all processes."""
        if self.growth is None:
            return self.batch_size
        return self.growth.samples(step)

    def draw_key(self, step: int) -> int:
        """Return the key for the draws of the objective in step number `step` of the run, the same in every process."""
        return draw_key(self.seed, self.epoch(step), step % self.steps_per_epoch)


class BatchDataset(Dataset[Batch]):
    """The training split as prepared batches by number.

    weighted: sequences of a batch may have different numbers of targets. A micro-batch then carries the `weight` that
        its mean loss has in the step. The weight is computed here, from the whole global batch, because the loss
        of the first micro-batch is needed before the last one is read; no process has to ask another, and no
        device is synchronized.
    """

    def __init__(self, split: Split, layout: Layout, objective: Objective, *, weighted: bool = False) -> None:
        self.split = split
        self.layout = layout
        self.objective = objective
        self.weighted = weighted and layout.shards > 1

    def __getitem__(self, number: int) -> Batch:
        try:
            return self._batch(number)
        except BaseException as error:
            if isinstance(error, Exception | OverdueError) and not isinstance(error, StopIteration):
                raise
            # Of a component: it would end a worker process, or the epoch, without a word.
            raise RuntimeError(f"{type(error).__name__} was raised while batch {number} was read") from error

    def _batch(self, number: int) -> Batch:
        layout = self.layout
        micro_batch = number % layout.micro_batches
        shard = micro_batch * layout.readers + layout.rank % layout.readers
        batch = self._shard(number, shard, layout.shards)
        if not self.weighted:
            return batch
        count = self.objective.count
        share = count(batch) / max(count(self._shard(number, 0, 1)), 1)
        return replace(batch, weight=torch.tensor(share * layout.shards, dtype=torch.float32))

    def _shard(self, number: int, shard: int, shards: int) -> Batch:
        """Return shard `shard` of `shards` of the global batch that batch `number` belongs to, prepared."""
        layout = self.layout
        step = number // layout.micro_batches
        batch = self._ready(self._order(step, shard, shards), step)
        if not self.objective.mixes:
            return batch
        key = layout.draw_key(step)
        if shards == 1:
            return self.objective.mix(batch, batch.map(lambda tensor: tensor.flip(0)), key)
        # The partner of each sample is the one opposite it in the whole batch, which may be in another process.
        opposite = self._order(step, 0, 1).flip(0)[shard::shards]
        return self.objective.mix(batch, self._ready(opposite, step), key)

    def _ready(self, order: Tensor, step: int) -> Batch:
        """Return the samples of step number `step` of the run, prepared."""
        layout = self.layout
        # Where the split plans its order, the numbers in it say how often its parts were gone through.
        epoch = 0 if layout.planned else layout.epoch(step)
        batch = take(self.split, order, epoch_key(layout.seed, epoch))
        if layout.planned:
            batch.sample = order % layout.samples
        if layout.growth is not None:
            batch = layout.growth.cut(batch, step)
        return self.objective.ready(batch, layout.draw_key(step))

    def _order(self, step: int, shard: int, shards: int) -> Tensor:
        """Return the samples of shard `shard` of `shards` of the global batch of step number `step` of the run."""
        layout = self.layout
        if layout.planned:
            planned_step = step % layout.steps_per_epoch if layout.overfit else step
            return layout.planned(planned_step)[shard::shards]
        order = step_indices(
            layout.seed_of_order,
            layout.epoch(step),
            step % layout.steps_per_epoch,
            num_samples=layout.samples,
            batch_size=layout.batch_size,
            rank=shard,
            world=shards,
            lengths=layout.lengths,
            group=layout.group,
            keyed=layout.keyed,
            classes=layout.classes,
        )
        if layout.growth is None:
            return order
        return order[: layout.growth.samples(step) // shards]


class RangeSampler(Sampler[int]):
    """The numbers from `start` to `stop`. It has no length, so that Lightning counts no epochs by it."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


class TrainingLoader(DataLoader[Batch]):
    """The batches of a run. It is read once: a second pass would train on the wrong ones.

    interrupts: of the run, or None
    """

    interrupts: Interrupts | None = None
    start_worker = staticmethod(leave_signals_to_main)  # called in each worker process
    _workers: Sequence[BaseProcess] = ()
    _started = False
    _iterator: Any = None  # with which torch watches the workers
    _watch: StoppedWorkers | None = None

    def _get_iterator(self) -> Any:
        if self._started:
            raise RuntimeError(
                "the run's batches were to be read a second time: a component or a callback ended the epoch early, "
                "for example by raising StopIteration"
            )
        self._started = True
        # Workers start here, and are watched: torch itself waits without a limit for one that is stopped.
        iterator = super()._get_iterator()
        self._workers = getattr(iterator, "_workers", ())
        if self._workers:
            self._iterator = iterator
            self._watch = StoppedWorkers([worker.pid for worker in self._workers if worker.pid], self.timeout)
            self._watch.start()
            batches = self._until_dead(iterator)
            if self.interrupts is not None:
                return self._until_stopped(batches, self.interrupts)
            return batches
        return iterator

    def _until_dead(self, iterator: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of the workers. Raises RuntimeError where a worker died while it sent one.

        The connection to a killed worker breaks a moment before its process counts as dead. torch looks only once, and
        would report the connection.
        """
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except (OSError, EOFError) as error:
                ended = wait([worker.sentinel for worker in self._workers], timeout=_DEATH)
                if not ended:
                    raise
                dead = [worker for worker in self._workers if worker.sentinel in ended]
                for worker in dead:
                    worker.join()
                pids = [worker.pid for worker in dead]
                raise RuntimeError(f"worker processes {pids} exited unexpectedly") from error
            yield batch

    def _until_stopped(self, iterator: Iterator[Batch], interrupts: Interrupts) -> Iterator[Batch]:
        """Yield the batches of the workers; after a signal, read them in this process if a worker does not answer.

        So a run with workers that are stopped, hang or died finishes the step in progress and saves, as any other.
        """
        alone = False
        for number in self.sampler:
            if not alone:
                try:
                    with interrupts.limiting(GRACE):
                        batch = next(iterator)
                except (OverdueError, RuntimeError, OSError, EOFError):
                    if interrupts.signum is None:
                        raise
                    alone = True
                    self.close()
            if alone:
                batch = self._read_here(number, interrupts)
            yield batch

    def _read_here(self, number: int, interrupts: Interrupts) -> Batch:
        """Read a batch in this process. Raises Interrupted where that takes as long as a worker may take."""
        try:
            with interrupts.limiting(self.timeout):
                return self.dataset[number]
        except OverdueError:
            assert interrupts.signum is not None
            raise Interrupted(interrupts.signum) from None

    def stopped(self) -> str | None:
        """Return the worker processes that were given up because they stayed stopped, or None."""
        if self._watch is None or not self._watch.killed:
            return None
        return f"worker processes {self._watch.killed} timed out after {self.timeout:g} seconds: they were stopped"

    def close(self) -> None:
        """Kill worker processes that are still there: they hang, or were stopped."""
        from blockyard.engine.lightning.patches import forget_workers

        if self._watch is not None:
            self._watch.close()
        if self._iterator is not None:
            forget_workers(self._iterator)
            self._iterator = None
        for worker in self._workers:
            if worker.is_alive():
                worker.kill()


def training_loader(
    dataset: BatchDataset,
    *,
    start: int,
    stop: int,
    workers: int,
    pin: bool,
    timeout: float,
    interrupts: Interrupts | None = None,
    loader_class: type[TrainingLoader] = TrainingLoader,
) -> TrainingLoader:
    """Batches number `start` to `stop` of the run; the same with any number of workers.

    On Linux the workers are forked, whatever start method the program has set. A worker ends when its parent has died,
    and with the method "forkserver" its parent is a server that outlives a killed run.

    timeout: seconds that the training process waits for a batch of its workers
    interrupts: of the run, or None; after a signal, workers that do not answer are not waited for
    loader_class: of the loader; a `StreamLoader` counts steps instead of batches
    """
    # The dataset gives whole batches, so torch neither samples nor collates. Memory is pinned for copies to a GPU
    # beside the computation.
    loader = loader_class(
        dataset,
        batch_size=None,
        sampler=RangeSampler(start, stop),
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
        timeout=timeout if workers else 0,
        worker_init_fn=loader_class.start_worker if workers else None,
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
    )
    loader.interrupts = interrupts
    return loader
