"""The order of the data: which samples a step sees, as a pure function of (seed, epoch, step).

The order has no state. A resumed run needs only the three numbers, and two runs with the same seed see the
same samples in the same order, whatever their models are. The rules:

* training: epoch `e` is a permutation of all samples; step `s` takes the global batch at
  [s * batch_size, (s + 1) * batch_size). An incomplete last batch is dropped; the permutation of the
  next epoch drops other samples. A data set smaller than one batch gives one step per epoch, which
  is filled by starting over at the front of the permutation.
* training in groups: of samples of different lengths, batches of similar ones need less padding. The permutation is
  cut into groups of so many batches, each group is sorted by length, and the batches of the epoch are permuted. The
  samples of an epoch stay the same; how they meet in batches changes.
* training with a keyed order: for more samples than a table should hold, the permutation is computed index by index
  (`_permutation`); the rest is as above.
* training in equal shares of classes: instead of a permutation, an epoch has as many samples of each class.
* training on a mixture: the split says itself which samples a step takes (`mixed.MixedOrder`).
* evaluation: samples in storage order, each exactly once; the last batch may be short. Of a mixture each batch has
  samples of one part, the same as if the part were evaluated alone, and the parts alternate.
* ranks: of each global batch, rank r of w takes samples r, r + w, r + 2w, ... The shards are disjoint
  and together make up the global batch, so the training order does not depend on the number of
  processes. In evaluation every rank gets the same number of samples; missing ones are -1, see `take`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch, Mixed, Split

ROUNDS = 6  # an even number, after which L is below a again, and R below b
LARGEST = 2**62  # indices
BLOCK = 8192  # indices of a keyed order that are computed together


def step_indices(
    seed: int,
    epoch: int,
    step: int,
    *,
    num_samples: int,
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    lengths: Tensor | None = None,
    group: int = 0,
    keyed: bool = False,
    classes: Tensor | None = None,
) -> Tensor:
    """Return the sample indices (batch_size / world,) int64 of training step `step` (from 0) of `epoch`.

    lengths, group: as in `grouped_order`; with lengths of None, batches follow the permutation
    keyed: whether the permutation is computed by `keyed_order`
    classes: as in `balanced_order`, which then is the order of the epoch
    Raises ValueError if the global `batch_size` is not divisible by the number of processes.
    """
    _check_world(batch_size, rank, world)
    steps = steps_per_epoch(num_samples, batch_size)
    if not 0 <= step < steps:
        raise ValueError(
            f"step={step} is not in an epoch of {steps} steps ({num_samples} samples in batches of {batch_size})"
        )
    if keyed and classes is None and num_samples >= batch_size:
        first, last = step * batch_size // BLOCK, ((step + 1) * batch_size - 1) // BLOCK
        blocks = torch.cat([keyed_order(seed, epoch, num_samples, block) for block in range(first, last + 1)])
        start = step * batch_size - first * BLOCK
        return blocks[start + rank : start + batch_size : world]
    if classes is not None:
        order = balanced_order(seed, epoch, classes)
    elif lengths is None:
        order = epoch_order(seed, epoch, num_samples)
    else:
        order = grouped_order(seed, epoch, lengths, batch_size, group)
    if num_samples < batch_size:
        order = order.repeat(-(-batch_size // num_samples))
    return order[step * batch_size + rank : (step + 1) * batch_size : world]


def mix(*parts: int | str) -> int:
    """Hash numbers and name into one 63-bit key, so that streams of different names are independent."""
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, num_samples: int) -> Tensor:
    """Return the permutation (num_samples,) int64 of this epoch. It is cached: do not modify it."""
    generator = torch.Generator().manual_seed(mix("order", seed, epoch))
    return torch.randperm(num_samples, generator=generator)


@lru_cache(maxsize=8)
def keyed_order(seed: int, epoch: int, num_samples: int, block: int) -> Tensor:
    """Return block number `block` of an epoch's permutation without a table of it, (BLOCK,) int64. Do not modify it.

    The last block is shorter. A block costs little more than a few of its indices.
    """
    indices = torch.arange(block * BLOCK, min((block + 1) * BLOCK, num_samples))
    return permuted(indices, num_samples, mix("order", seed, epoch))


@lru_cache(maxsize=4)
def grouped_order(seed: int, epoch: int, lengths: Tensor, batch_size: int, group: int) -> Tensor:
    """Return the samples of this epoch (steps * batch_size,) int64 in batches of similar lengths. Do not modify it.

    lengths: (n,) of the samples, the same tensor in every call, because the cache compares identities
    group: batches that are sorted together; samples of one length keep their random order
    """
    num_samples = len(lengths)
    order = epoch_order(seed, epoch, num_samples)
    if num_samples < batch_size:
        return order
    steps = num_samples // batch_size
    pools = order[: steps * batch_size].split(group * batch_size)
    batches = torch.cat([pool[lengths[pool].argsort(stable=True)] for pool in pools]).view(steps, batch_size)
    generator = torch.Generator().manual_seed(mix("batches", seed, epoch))
    return batches[torch.randperm(steps, generator=generator)].flatten()


@lru_cache(maxsize=4)
def balanced_order(seed: int, epoch: int, classes: Tensor) -> Tensor:
    """Return the samples (n,) int64 of an epoch in which every class has the same number of samples, give or take one.

    The samples of a rare class come several times, each as often as the others of it, give or take once; of a frequent
    class every epoch takes others. classes: (n,), the same tensor in every call, because the cache compares identities
    """
    generator = torch.Generator().manual_seed(mix("balanced", seed, epoch))
    names = classes.unique()
    # In random order, because the first classes get the remainder.
    names = names[torch.randperm(len(names), generator=generator)]
    chosen = []
    for number, name in enumerate(names.tolist()):
        members = (classes == name).nonzero()[:, 0]
        count = len(classes) // len(names) + (number < len(classes) % len(names))
        rounds = -(-count // len(members))
        drawn = [members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)]
        chosen.append(torch.cat(drawn)[:count])
    order = torch.cat(chosen)
    return order[torch.randperm(len(order), generator=generator)]


def epoch_key(seed: int, epoch: int) -> int:
    """Return the key for `Split.batch` in this epoch, the same at every step and on every rank.

    Augmentation hashes it with the sample's index. One key per epoch is therefore enough, and a sample
    is augmented the same way on whichever rank or batch slot it lands.
    """
    return mix("augment", seed, epoch)


def draw_key(seed: int, epoch: int, step: int) -> int:
    """Return the key for `Objective.prepare` at this step, the same on every rank and for every micro-batch.

    Objectives hash it with the sample's index, as augmentation does.
    """
    return mix("draw", seed, epoch, step)


def steps_per_epoch(num_samples: int, batch_size: int) -> int:
    """Return the number of training steps in an epoch; `batch_size` is the global one."""
    return max(1, num_samples // batch_size)


def eval_steps(num_samples: int, batch_size: int) -> int:
    """Return the number of evaluation steps that cover every sample, the same on every rank."""
    return -(-num_samples // batch_size)


def eval_indices(step: int, *, num_samples: int, batch_size: int, rank: int = 0, world: int = 1) -> Tensor:
    """Return the sample indices int64 of evaluation step `step`; -1 fills slots for which no sample is left.

    With one process no index is -1 and the last batch may be short. With several, every rank gets the
    same number of slots, because sharded models must run in lockstep.
    """
    stop = min((step + 1) * batch_size, num_samples)
    return _shard(torch.arange(step * batch_size, stop), batch_size, rank, world)


class EvalOrder:
    """The batches of an evaluation by number, as in `eval_indices`. The parts of a mixture alternate.

    After any number of batches, each part has had its share of them, give or take one.
    """

    def __init__(self, split: Split, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.split, self.batch_size, self.rank, self.world = split, batch_size, rank, world
        counts = [len(part) for part in split.parts.values()] if isinstance(split, Mixed) else [len(split)]
        batches: list[tuple[float, range]] = []
        start = 0
        for count in counts:
            steps = eval_steps(count, batch_size)
            for step in range(steps):
                first = start + step * batch_size
                batches.append(((step + 0.5) / steps, range(first, min(first + batch_size, start + count))))
            start += count
        self._ranges = [samples for _, samples in sorted(batches, key=lambda batch: batch[0])]

    def __len__(self) -> int:
        return len(self._ranges)

    def __call__(self, step: int) -> Tensor:
        """Return the sample indices of this process in batch number `step`, -1 where no sample is left for it."""
        return _shard(torch.tensor(self._ranges[step]), self.batch_size, self.rank, self.world)

    def samples(self, limit: int | None) -> int:
        """Return the number of samples of the first `limit` batches, or of all for None."""
        return sum(map(len, self._ranges[:limit]))


def _shard(indices: Tensor, batch_size: int, rank: int, world: int) -> Tensor:
    """Return this process's share of the samples of a batch, as many as any other process gets."""
    _check_world(batch_size, rank, world)
    missing = -len(indices) % world
    if missing:
        indices = torch.cat([indices, indices.new_full((missing,), -1)])
    return indices[rank::world]


def take(split: Split, order: Tensor, key: int | None) -> Batch:
    """Return `split.batch(order, key)` with its sample indices set; index -1 gives a dummy sample.

    A dummy holds sample 0; `Objective.ready` ignores its targets, so that no metric counts it.
    """
    batch = split.batch(order.clamp_min(0), key)
    batch.sample = order
    return batch


def _check_world(batch_size: int, rank: int, world: int) -> None:
    if batch_size % world:
        raise ValueError(
            f"a batch of {batch_size} samples does not divide among {world} processes; data.batch_size and "
            f"data.eval_batch_size count the samples of all processes: use a multiple of {world}"
        )
    assert 0 <= rank < world, (rank, world)


def permuted(indices: Tensor, size: int, key: int) -> Tensor:
    """Return where a permutation of 0 ... size - 1 sends `indices` (n,) int64; `key` selects the permutation.

    It is computed index by index, for more indices than a table in memory should hold.

    Source: Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains: the generalized Feistel cipher and cycle
        walking; Luby and Rackoff 1988 for the network of rounds
    Equation: an index m < a b is split into L = m mod a and R = m div a; round j replaces (L, R) by (R, L + F_j(R)),
        the sum modulo a in odd rounds and modulo b in even ones

    Each round can be undone, so that the rounds permute the a b indices whatever F is. a and b are the square root of
    the number of indices, rounded up. F is a hash with a key of its own in each round, and no cipher: nothing here is
    secret.
    """
    assert 0 < size <= LARGEST, size
    a = isqrt(size - 1) + 1
    sides = np.uint64(a), np.uint64(-(-size // a))
    keys = _scrambled(np.arange(1, ROUNDS + 1, dtype=np.uint64), np.uint64(key % 2**64))
    result = _rounds(indices.numpy().astype(np.uint64), sides, keys)
    # Cycle walking: the few results beyond the last index are permuted again until none is left.
    beyond = np.flatnonzero(result >= size)
    while len(beyond):
        result[beyond] = _rounds(result[beyond], sides, keys)
        beyond = beyond[result[beyond] >= size]
    return torch.from_numpy(result.astype(np.int64))


def _rounds(index: Any, sides: tuple[Any, Any], keys: Any) -> Any:
    """Apply the rounds of the network to indices (n,) uint64 below the product of the sides (a, b)."""
    left, right = index % sides[0], index // sides[0]
    for number, key in enumerate(keys):
        side = sides[number % 2]
        # The hash is reduced first: a sum beyond 64 bits would not be the sum modulo the side.
        left, right = right, (left + _scrambled(right, key) % side) % side
    return left + right * sides[0]


def _scrambled(values: Any, key: Any) -> Any:
    """Return hashes of values (n,) uint64 by the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = values * np.uint64(0x9E3779B97F4A7C15) + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
