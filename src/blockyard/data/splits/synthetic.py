"""Shared parts of the synthetic tasks: sequences of token ids, generated from a seed.

Candidate sequences are numbered 0, 1, ... and each is a hash of (data_seed, number), so they are the same
on every machine. A hash of its token ids assigns each sequence to a split, so that no two splits share one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import torch
from torch import Tensor

from blockyard.contracts import Batch, BatchSize, DataSpec, Length, Samples, Seed, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.splits.hash import hash_sequences, uniform
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.errors import UserError

CHUNK = 8192  # candidates generated at a time
TRIES = 200  # chunks after which a task counts as having too few different sequences
HELD_OUT = 0.1  # share of all possible sequences that may go to validation, and the same to test
EMPTY = -1  # in place of tokens that a sequence does not have


@dataclass(kw_only=True, eq=False)
class SyntheticTask(LoadedData):
    """Sequences of token ids that follow one known rule. Subclasses implement `vocabulary` and `generate`.

    Options:
        length: tokens of a sequence
        samples: training sequences
        eval_samples: sequences of the validation split, and of the test split
        data_seed: seed of the sequences; independent of the run's seed, so that all seeds share them
        batch_size: sequences in a training step, over all processes
        eval_batch_size: sequences in a validation or test step, over all processes
    """

    published_under = "none: drawn from a seed"

    length: Length = 64
    samples: Samples = 20_000
    eval_samples: Samples = 1_000
    data_seed: Seed = 0
    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 256

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    def spec(self) -> DataSpec:
        """Sequences of one length with a target at some or all positions."""
        return DataSpec("symbols", (self.length,), target="symbols", vocabulary=self.vocabulary, resizable=True)

    def bytes_in_memory(self) -> int:
        """Return the size of all sequences as int64."""
        return (self.samples + 2 * self.eval_samples) * self.length * 8

    @abstractmethod
    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate a sequence for each sample number of `random`; sequences that break a constraint may be left out."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Generate the splits. Raises ValueError if the task has too few different sequences to hold some out."""
        splits = self._generate_splits(self.sizes_of(self.samples, self.eval_samples))
        self._fingerprint = sha256(tensor for split in splits for tensor in split if tensor is not None)
        return Splits(*(TaskSplit(split, partial(self._regenerate, n)) for n, split in enumerate(splits)))

    def lengthened(self, factor: int) -> Self:
        """Return the task with sequences `factor` times as long and the same number of targets in each."""
        task = copy(self)
        task.length = self.length * factor
        return task

    def _regenerate(self, split: int, count: int, factor: int) -> TaskBatch:
        """Generate sequences of a split at another length; at factor 1 they are its first ones."""
        counts = [0, 0, 0]
        counts[split] = count
        (sequences,) = self.lengthened(factor)._generate_splits(counts)
        return sequences

    def _generate_splits(self, counts: Sequence[int]) -> list[TaskBatch]:
        """Generate `counts[i]` sequences of split i, leaving out splits of none.

        Raises ValueError if the task has too few different ones.
        """
        batches: list[list[TaskBatch]] = [[], [], []]
        generated = [0, 0, 0]
        key = mix(type(self).__name__, self.data_seed)
        for chunk in range(TRIES + 4 * sum(counts) // CHUNK):
            candidates = self.generate(SampleRandom(key, torch.arange(chunk * CHUNK, (chunk + 1) * CHUNK)))
            # A hash of its tokens gives a sequence its split, so that equal sequences are in one split.
            share = hash_sequences(candidates.inputs)  # (n,) in [0, 1)
            split = (share < HELD_OUT).long() + 2 * ((share >= HELD_OUT) & (share < 2 * HELD_OUT)).long()  # (n,)
            for number in range(3):
                if generated[number] < counts[number]:
                    batches[number].append(candidates.select(split == number))
                    generated[number] += len(batches[number][-1].inputs)
            if all(have >= need for have, need in zip(generated, counts, strict=True)):
                break
        else:
            raise UserError(
                f"{type(self).__name__} with these options has too few different sequences to keep the splits "
                f"disjoint (generated {generated}, needed {list(counts)}); raise data.length or the vocabulary"
            )
        return [TaskBatch.concatenate(part, count) for part, count in zip(batches, counts, strict=True) if part]


class TaskSplit:
    """A split in memory; sequences of different lengths are cut to the longest of a batch.

    regenerate: (count, factor) -> as many sequences of the same split, `factor` times as long
    """

    redrawn = True

    def __init__(self, sequences: TaskBatch, regenerate: Callable[[int, int], TaskBatch]) -> None:
        self.sequences = sequences._replace(inputs=sequences.inputs.int(), target=sequences.target.int())
        self.regenerate = regenerate

    def at_length(self, count: int, factor: int) -> TaskSplit:
        """Return `count` sequences of the task, `factor` times as long."""
        return TaskSplit(self.regenerate(count, factor), self.regenerate)

    def __len__(self) -> int:
        return len(self.sequences.inputs)

    @property
    def lengths(self) -> Tensor | None:
        """The tokens of each sequence (n,), None where all have the same number."""
        return self.sequences.lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, N), the target, and lengths (B,) if they differ. Nothing is augmented."""
        inputs, target, lengths, part = self.sequences.select(order)
        longest = inputs.shape[1] if lengths is None else int(lengths.max())
        target = target[:, :longest] if target.ndim == 2 else target
        return Batch(inputs[:, :longest].long(), target.long(), lengths=lengths, slice=part)


class TaskBatch(NamedTuple):
    """Sequences of a task. inputs: (n, N) int64; target: (n, N) with `Batch.ignore`, or (n,); lengths: (n,) or None.

    slice: (n,) int64, which of `DataSpec.slices` each belongs to; None where the task has no slices
    """

    inputs: Tensor
    target: Tensor
    lengths: Tensor | None = None
    slice: Tensor | None = None

    def select(self, indices: Tensor) -> TaskBatch:
        """Return the sequences `indices` (m,), or the sequences where a mask (n,) is True."""
        return TaskBatch(*(None if column is None else column[indices] for column in self))  # type: ignore[arg-type]

    @classmethod
    def concatenate(cls, batches: list[TaskBatch], count: int) -> TaskBatch:
        """Join batches and keep the first `count` sequences."""
        parts = (None if None in column else torch.cat(column)[:count] for column in zip(*batches, strict=True))
        return cls(*parts)  # type: ignore[arg-type]


class SampleRandom(NamedTuple):
    """Random numbers by sample number, the same for a sample whatever the others are. order: (n,) int64."""

    key: int
    order: Tensor

    def uniform(self, stream: str, count: int) -> Tensor:
        """Return (n, count) float64 in [0, 1); streams of different names are independent."""
        return uniform(mix(stream, self.key), self.order, count).T

    def integers(self, stream: str, count: int, high: int) -> Tensor:
        """Return (n, count) int64 from 0 to `high` - 1."""
        return (self.uniform(stream, count) * high).long()

    def distinct(self, stream: str, count: int, high: int) -> Tensor:
        """Return (n, count) different numbers from 0 to `high` - 1 in random order."""
        return self.uniform(stream, high).topk(count, 1, largest=False).indices


def right_aligned(inputs: Tensor, target: Tensor, length: int, blank: int) -> tuple[Tensor, Tensor]:
    """Return inputs and target (n, `length`) without the EMPTY inputs (n, M), M <= N, with blanks in front.

    Blanks and EMPTY inputs have no target.
    """
    order = (inputs != EMPTY).long().argsort(dim=1, stable=True)  # EMPTY inputs first
    inputs, target = inputs.gather(1, order), target.gather(1, order)
    front = inputs.new_full((len(inputs), max(0, length - inputs.shape[1])), EMPTY)
    inputs, target = torch.cat([front, inputs], 1)[:, -length:], torch.cat([front, target], 1)[:, -length:]
    empty = inputs == EMPTY
    return inputs.masked_fill(empty, blank), target.masked_fill(empty, Batch.ignore)
