"""Batches by number: the loader holds no order, only where to start.

One pass of the loader is the whole run, not an epoch: `epoch` and `step` of a batch follow from its
number. Workers are started once, and a run that resumes begins in the middle of an epoch as
easily as at its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import DataLoader, Dataset, Sampler

from blockyard.contracts import Batch, Split
from blockyard.data._order import epoch_key, step_indices, steps_per_epoch, take
from blockyard.errors import UserError


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


class Numbered(Dataset[Batch]):
    """The training split as batches by number."""

    def __init__(self, split: Split, layout: Layout) -> None:
        self.split = split
        self.layout = layout

    def __getitem__(self, number: int) -> Batch:
        layout = self.layout
        epoch, step, piece = layout.place(number)
        order = step_indices(
            layout.seed,
            0 if layout.overfit else epoch,
            step,
            num_samples=layout.samples,
            batch_size=layout.batch_size,
            rank=piece * layout.world + layout.rank,
            world=layout.pieces * layout.world,
        )
        return take(self.split, order, epoch_key(layout.seed, 0 if layout.overfit else epoch))


class From(Sampler[int]):
    """The numbers from `start` to `stop`. It has no length, so that nobody counts epochs by it."""

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


def training_loader(
    split: Split, layout: Layout, *, start: int, stop: int, workers: int, pin: bool
) -> DataLoader[Batch]:
    """Batches number `start` to `stop` of the run; the same with any number of workers."""
    return DataLoader(
        Numbered(split, layout),
        batch_size=None,
        sampler=From(start, stop),
        num_workers=workers,
        pin_memory=pin,
        prefetch_factor=4 if workers else None,
    )
