"""The order of the data: which samples a step sees, as a pure function of (seed, epoch, step).

No state is kept, so a resumed run needs nothing but the three numbers, and two runs with the same
seed see the same samples in the same order whatever their model is. The rules:

* training: epoch `e` is a permutation of all samples; step `s` takes the global batch at
  [s * batch_size, (s + 1) * batch_size). The rest that fills no batch is left out of that epoch
  (another permutation leaves out others). A data set smaller than one batch gives one step per
  epoch, filled up by starting again at the front of the permutation.
* evaluation: samples in storage order, every one exactly once; the last batch may be short.
* ranks: of each global batch, rank r of w takes rows r, r + w, r + 2w, ... The shards are disjoint
  and together the global batch, so the training order does not depend on the number of processes.
  In evaluation all ranks get equally many rows; rows that are missing are -1, see `take`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Tensor

from blockyard.contracts import Batch, Split


def mix(*words: int | str) -> int:
    """One 63-bit number from several, so that streams with different words never coincide."""
    text = "/".join(f"{type(word).__name__[0]}{word}" for word in words)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, num_samples: int) -> Tensor:
    """The permutation (num_samples,) int64 of this epoch. It is shared: do not write into it."""
    generator = torch.Generator().manual_seed(mix("order", seed, epoch))
    return torch.randperm(num_samples, generator=generator)


def epoch_key(seed: int, epoch: int) -> int:
    """The key for `Split.batch` in this epoch: the same at every step and on every rank.

    Augmentation hashes it with the number of the sample, so one key per epoch suffices and a
    sample is changed alike whichever rank or row it falls on.
    """
    return mix("augment", seed, epoch)


def draw_key(seed: int, epoch: int, step: int) -> int:
    """The key for `Objective.prepare` at this step: the same on every rank and for every piece of its batch.

    What is drawn hashes it with the number of the sample, as augmentation does.
    """
    return mix("draw", seed, epoch, step)


def steps_per_epoch(num_samples: int, batch_size: int) -> int:
    """How many training steps one epoch has; `batch_size` is the global one."""
    return max(1, num_samples // batch_size)


def step_indices(
    seed: int, epoch: int, step: int, *, num_samples: int, batch_size: int, rank: int = 0, world: int = 1
) -> Tensor:
    """The samples (batch_size / world,) int64 of training step `step` (from 0) of `epoch`.

    Raises ValueError where the global `batch_size` does not divide by the number of processes.
    """
    _check_world(batch_size, rank, world)
    steps = steps_per_epoch(num_samples, batch_size)
    if not 0 <= step < steps:
        raise ValueError(f"step {step} of an epoch of {steps} steps ({num_samples} samples by {batch_size})")
    order = epoch_order(seed, epoch, num_samples)
    if num_samples < batch_size:
        order = order.repeat(-(-batch_size // num_samples))
    return order[step * batch_size + rank : (step + 1) * batch_size : world]


def eval_steps(num_samples: int, batch_size: int) -> int:
    """How many evaluation steps cover every sample; the same on every rank."""
    return -(-num_samples // batch_size)


def eval_indices(step: int, *, num_samples: int, batch_size: int, rank: int = 0, world: int = 1) -> Tensor:
    """The samples int64 of evaluation step `step`; -1 where this rank has none to fill its row.

    With one process there is no -1 and the last batch is short. With several, every rank gets the
    same number of rows, because sharded models must run in step.
    """
    _check_world(batch_size, rank, world)
    stop = min((step + 1) * batch_size, num_samples)
    rows = torch.arange(step * batch_size, stop)
    short = -len(rows) % world
    if short:
        rows = torch.cat([rows, rows.new_full((short,), -1)])
    return rows[rank::world]


def take(split: Split, order: Tensor, key: int | None) -> Batch:
    """`split.batch(order, key)` with the numbers of its samples; a row numbered -1 is a stand-in that asks for nothing.

    Such a row holds sample 0 with every target `Batch.ignore`, so that no metric counts it.
    """
    absent = order < 0
    batch = split.batch(order.clamp_min(0), key)
    batch.sample = order
    if not bool(absent.any()):
        return batch
    target = batch.inputs.clone() if batch.target is None else batch.target.clone()
    target[absent] = Batch.ignore
    batch.target = target
    return batch


def _check_world(batch_size: int, rank: int, world: int) -> None:
    if batch_size % world:
        raise ValueError(
            f"a batch of {batch_size} does not divide among {world} processes; data.batch_size and "
            f"data.eval_batch_size count the whole batch, take a multiple of {world}"
        )
    assert 0 <= rank < world, (rank, world)
