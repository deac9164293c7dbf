"""Tasks made of symbols to a seed: what they share.

Candidate rows are numbered 0, 1, ... and each is a hash of (data_seed, number), so they are the same
on every machine. The row's own symbols decide its part (a hash of them), so that no row can be in two.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, Count, CountOrZero, DataModule, DataSpec, Splits, Tokenizer
from blockyard.data._hash import hashed, uniform
from blockyard.data._order import mix
from blockyard.data._split import sha256

CHUNK = 8192  # candidates made at a time
TRIES = 200  # chunks until a task is said to have too few different rows
HELD_OUT = 0.1  # share of all rows there are that may go to validation, and to the test


class Made(NamedTuple):
    """Rows of a task. inputs: (n, N) int64; target: (n, N) with `Batch.ignore`, or (n,); lengths: (n,) or None."""

    inputs: Tensor
    target: Tensor
    lengths: Tensor | None = None

    def pick(self, order: Tensor) -> Made:
        """The rows `order` (m,), or those where it is True."""
        return Made(*(None if part is None else part[order] for part in self))


class Held:
    """Rows in memory; those of different lengths are cut to the longest of a batch.

    drawn: (rows, factor) -> as many rows of the same part, `factor` times as long
    """

    redrawn = True

    def __init__(self, made: Made, drawn: Callable[[int, int], Made]) -> None:
        self.rows = Made(made.inputs.int(), made.target.int(), made.lengths)
        self.drawn = drawn

    def at_length(self, rows: int, factor: int) -> Held:
        """The task at that length."""
        return Held(self.drawn(rows, factor), self.drawn)

    def __len__(self) -> int:
        return len(self.rows.inputs)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs (B, N), the target, and lengths (B,) where they differ. Nothing is augmented."""
        inputs, target, lengths = self.rows.pick(order)
        width = inputs.shape[1] if lengths is None else int(lengths.max())
        target = target[:, :width] if target.ndim == 2 else target
        return Batch(inputs[:, :width].long(), target.long(), lengths=lengths)


class Probe(DataModule):
    """Rows of symbols with one known rule. Subclasses make candidates out of random numbers.

    Options:
        length: symbols of a row
        samples: rows to train on
        eval_samples: rows of the validation part, and of the test part
        data_seed: draws the rows; not the run's seed, so that all seeds share them
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
    """

    incidental = frozenset({"eval_batch_size"})

    def __init__(
        self,
        *,
        length: Count = 64,
        samples: Count = 20_000,
        eval_samples: Count = 1_000,
        data_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
    ) -> None:
        self.length, self.samples, self.eval_samples, self.data_seed = length, samples, eval_samples, data_seed
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self._fingerprint: str | None = None

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many symbols there are."""

    @property
    def spec(self) -> DataSpec:
        """Rows of symbols, with a target where something is asked."""
        return DataSpec("symbols", (self.length,), target="symbols", vocabulary=self.vocabulary, resizable=True)

    @abstractmethod
    def make(self, draw: Draw) -> Made:
        """One row for each of the draw's numbers. Rows that break a wish may be left out."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Make the parts. Raises ValueError where there are too few different rows to hold some back."""
        parts = self._parts((self.samples, self.eval_samples, self.eval_samples))
        self._fingerprint = sha256(part for made in parts for part in made if part is not None)
        return Splits(*(Held(made, partial(self._longer, number)) for number, made in enumerate(parts)))

    def lengthened(self, factor: int) -> Probe:
        """The task in rows `factor` times as long, as much asked in each."""
        task = copy(self)
        task.length = self.length * factor
        return task

    def _longer(self, part: int, rows: int, factor: int) -> Made:
        """Rows of a part, drawn at another length; at factor 1 they are its first rows."""
        (made,) = self.lengthened(factor)._parts(tuple(rows if number == part else 0 for number in range(3)))
        return made

    def _parts(self, wanted: tuple[int, ...]) -> list[Made]:
        """As many different candidates as wanted for each part that is. Raises ValueError where there are too few."""
        found: list[list[Made]] = [[], [], []]
        counts = [0, 0, 0]
        key = mix(type(self).__name__, self.data_seed)
        for chunk in range(TRIES + 4 * sum(wanted) // CHUNK):
            made = self.make(Draw(key, torch.arange(chunk * CHUNK, (chunk + 1) * CHUNK)))
            share = hashed(made.inputs)  # (n,) in [0, 1)
            part = (share < HELD_OUT).long() + 2 * ((share >= HELD_OUT) & (share < 2 * HELD_OUT)).long()  # (n,)
            for number in range(3):
                if counts[number] < wanted[number]:
                    found[number].append(made.pick(part == number))
                    counts[number] += len(found[number][-1].inputs)
            if all(has >= wants for has, wants in zip(counts, wanted, strict=True)):
                break
        else:
            raise ValueError(
                f"{type(self).__name__} with these options has too few different rows to keep the parts apart "
                f"(found {counts}, wanted {list(wanted)}); raise data.length or the number of symbols"
            )
        return [_joined(pieces, count) for pieces, count in zip(found, wanted, strict=True) if pieces]

    def fingerprint(self) -> str:
        """SHA-256 of the rows, part by part."""
        assert self._fingerprint is not None, "fingerprint() is valid after load()"
        return self._fingerprint


class Draw(NamedTuple):
    """Random numbers for rows by number: the same for a row whatever the others are. order: (n,) int64."""

    key: int
    order: Tensor

    def unit(self, stream: str, count: int) -> Tensor:
        """(n, count) float64 in [0, 1); streams with different names do not depend on each other."""
        return uniform(mix(stream, self.key), self.order, count).T

    def whole(self, stream: str, count: int, high: int) -> Tensor:
        """(n, count) int64 from 0 to `high` - 1."""
        return (self.unit(stream, count) * high).long()

    def distinct(self, stream: str, count: int, high: int) -> Tensor:
        """(n, count) different numbers from 0 to `high` - 1, in random order."""
        return self.unit(stream, high).topk(count, 1, largest=False).indices


def _joined(pieces: list[Made], count: int) -> Made:
    columns = zip(*pieces, strict=True)
    return Made(*(None if column[0] is None else torch.cat(column)[:count] for column in columns))
