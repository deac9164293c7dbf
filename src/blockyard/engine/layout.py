"""How steps, micro-batches and processes share the training data."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from blockyard.data._order import draw_key, steps_per_epoch
from blockyard.errors import UserError


@dataclass(frozen=True)
class Layout:
    """How steps, micro-batches and processes share the training data.

    A step consumes one global batch of `batch_size` samples, however many processes and micro-batches it is cut
    into. Neither changes what is learned, beyond the order of additions.

    seed: of the order; samples: in the training split; micro_batches: per step and process
    context: every process reads all samples, and the model cuts the sequences among them
    limit: steps an epoch is cut to, or None; overfit: repeat the first so many batches
    group, lengths: how many batches are sorted by length together, and the lengths (samples,) int64; 0 and None for
        batches in random order
    classes: (samples,) int64, for epochs in which every class comes equally often; None for every sample once
    keyed: the order is computed index by index, because the samples are too many for a table of it
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

    def __post_init__(self) -> None:
        if self.batch_size % self.shards:
            raise UserError(
                f"data.batch_size={self.batch_size} does not divide into {self.readers} processes "
                f"times trainer.accumulate={self.micro_batches} micro-batches; use a multiple of {self.shards}"
            )

    @property
    def readers(self) -> int:
        """Processes that share the samples of a step."""
        return 1 if self.context else self.world

    @property
    def shards(self) -> int:
        """Micro-batches of a step over all processes."""
        return self.micro_batches * self.readers

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one epoch."""
        steps = steps_per_epoch(self.samples, self.batch_size)
        if self.overfit:
            return min(self.overfit, steps)
        return min(steps, self.limit) if self.limit else steps

    def draw_key(self, step: int) -> int:
        """The key for what the objective draws in step number `step` of the run, the same in every process."""
        epoch, step = divmod(step, self.steps_per_epoch)
        return draw_key(self.seed, 0 if self.overfit else epoch, step)

    def locate(self, number: int) -> tuple[int, int, int]:
        """Epoch, step of that epoch and micro-batch of this process's batch `number`, counted over the run."""
        step, micro_batch = divmod(number, self.micro_batches)
        epoch, step = divmod(step, self.steps_per_epoch)
        return epoch, step, micro_batch
