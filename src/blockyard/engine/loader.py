"""Batches by number: the loader holds no order, only where to start.

One pass of the loader is the whole run, not an epoch: `epoch` and `step` of a batch follow from its
number. Workers are started once, and a run that resumes begins in the middle of an epoch as
easily as at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from blockyard.contracts import Batch, Split
from blockyard.data._order import draw_key, epoch_key, step_indices, steps_per_epoch, take
from blockyard.errors import UserError

Prepare = Callable[[Batch, int | None], Batch]  # Objective.prepare


@dataclass(frozen=True)
class Layout:
    """How updates, pieces of a batch and processes share the training data.

    A global batch of `batch_size` samples is one update, however many processes and pieces it is
    cut into; so neither changes what is learned, beyond the order of additions.

    seed: of the order; samples: in the training split; pieces: a process takes its share in
    limit: steps an epoch is cut to, or None; overfit: the first so many batches again and again
    """

    seed: int
    samples: int
    batch_size: int
    pieces: int = 1
    rank: int = 0
    world: int = 1
    limit: int | None = None
    overfit: int = 0

    def __post_init__(self) -> None:
        shards = self.pieces * self.world
        if self.batch_size % shards:
            raise UserError(
                f"data.batch_size={self.batch_size} does not divide into {self.world} processes "
                f"times trainer.accumulate={self.pieces} pieces; take a multiple of {shards}"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Updates in one epoch."""
        steps = steps_per_epoch(self.samples, self.batch_size)
        if self.overfit:
            return min(self.overfit, steps)
        return min(steps, self.limit) if self.limit else steps

    def place(self, number: int) -> tuple[int, int, int]:
        """Epoch, step and piece of batch `number`, counted over the run and one process's pieces."""
        update, piece = divmod(number, self.pieces)
        epoch, step = divmod(update, self.steps_per_epoch)
        return epoch, step, piece

    def draw(self, update: int) -> int:
        """The key for what the objective draws at update number `update`, in every process and piece."""
        epoch, step = divmod(update, self.steps_per_epoch)
        return draw_key(self.seed, 0 if self.overfit else epoch, step)


class BatchDataset(Dataset[Batch]):
    """The training split as batches by number.

    prepare: of the objective, where rows ask for different numbers of things. A batch that is a part of
        an update then has the `weight` its mean loss takes there. It is worked out here, from the whole
        update's rows, because the loss of a first piece is needed before the last piece is read; no
        process has to ask another, and no device is waited for.
    """

    def __init__(self, split: Split, layout: Layout, prepare: Prepare | None = None) -> None:
        self.split = split
        self.layout = layout
        self.prepare = prepare if layout.pieces * layout.world > 1 else None

    def __getitem__(self, number: int) -> Batch:
        layout = self.layout
        parts = layout.pieces * layout.world
        batch = self._part(number, layout.place(number)[2] * layout.world + layout.rank, parts)
        if self.prepare is not None:
            key = layout.draw(number // layout.pieces)
            mine, all_ = (_asked(self.prepare(part, key)) for part in (batch, self._part(number, 0, 1)))
            batch = replace(batch, weight=torch.tensor(mine * parts / max(all_, 1), dtype=torch.float32))
        return batch

    def _part(self, number: int, part: int, parts: int) -> Batch:
        layout = self.layout
        epoch, step, _ = layout.place(number)
        epoch = 0 if layout.overfit else epoch
        order = step_indices(
            layout.seed,
            epoch,
            step,
            num_samples=layout.samples,
            batch_size=layout.batch_size,
            rank=part,
            world=parts,
        )
        return take(self.split, order, epoch_key(layout.seed, epoch))


def _asked(batch: Batch) -> int:
    """How many answers a prepared batch asks for."""
    assert batch.target is not None
    return int((batch.target != Batch.ignore).sum())


class RangeSampler(Sampler[int]):
    """The numbers from `start` to `stop`. It has no length, so that nobody counts epochs by it."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


def training_loader(
    split: Split,
    layout: Layout,
    *,
    start: int,
    stop: int,
    workers: int,
    pin: bool,
    prepare: Prepare | None = None,
) -> DataLoader[Batch]:
    """Batches number `start` to `stop` of the run; the same with any number of workers.

    prepare: see `Numbered`
    """
    return DataLoader(
        BatchDataset(split, layout, prepare),
        batch_size=None,
        sampler=RangeSampler(start, stop),
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
    )
