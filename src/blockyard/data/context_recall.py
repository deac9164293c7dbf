"""Recall from the context, made harder: keys of several tokens, noise between pairs, values that are overwritten.

Source: Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures (MAD, arXiv 2403.17844), section 3.1,
    for noisy and fuzzy recall; the repository of Arora et al. 2023, Zoology (arXiv 2312.04927), for compositional and
    forgetting recall
Reference: athms/mad-lab mad/data/instances.py; HazyResearch/zoology data/compositional_ar.py and forgetting_mqar.py

    motif=3          k2 k5 v1  k7 v3 v3  ...  k7 GO GO  k2 k5 GO         a key, or a value, is 1 to 3 tokens
    noise=2          k2 v1  x4 x1  k7 v3  ...  k7 GO  k2 GO              x are tokens of their own
    compositional    k2 l1 v1  k2 l4 v3  k6 l1 v7  k6 l4 v2  ...  k6 l1 GO     no half of a key tells the value
    updates=1        k2 v1  k7 v3  k2 v9  ...  k2 GO  k7 GO              the last value counts: v9
    target                                        .  v9      v3

Every key is asked for once, in random order, and a GO stands for each token of its value. With `motif` sequences
differ in length and are filled from the left with blanks. The options can be combined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Batch, Because, CountOrZero, Length, Vocabulary
from blockyard.data.splits.synthetic import EMPTY, SampleRandom, SyntheticTask, TaskBatch, right_aligned

Motif = Annotated[int, Ge(1), Le(16), Because("a unit has room for twice as many tokens")]


@dataclass(kw_only=True, eq=False)
class ContextRecall(SyntheticTask):
    """Units of a key and its value, then every key with a GO for each token of its value.

    Options:
        length: tokens of a sequence; pairs, updates, noise and queries must fit
        pairs: keys with a value each; a square number with compositional=true
        motif: largest number of tokens of a key, and of a value; each number from 1 on is equally frequent (fuzzy
            recall)
        noise: units of noise tokens among those of keys (noisy recall)
        compositional: a key is two tokens, and every first token comes with every second one, so that neither tells
            the value alone
        updates: keys that come a second time, after all pairs, with another value, which is the one that counts
            (forgetting recall)
        keys: number of different tokens of keys; with compositional=true the first half of them come first
        values: number of different tokens of values
        noises: number of different noise tokens
    """

    length: Length = 64
    pairs: Length = 4
    motif: Motif = 1
    noise: CountOrZero = 0
    compositional: bool = False
    updates: CountOrZero = 0
    keys: Vocabulary = 32
    values: Vocabulary = 32
    noises: Vocabulary = 16

    def __post_init__(self) -> None:
        if self.compositional and (math.isqrt(self.pairs) ** 2 != self.pairs or self.motif > 1):
            raise ValueError(
                f"data.compositional=true makes all pairs of the two halves of keys: data.pairs={self.pairs} must be a "
                f"square such as 4, 9 or 16, and data.motif={self.motif} must be 1"
            )
        if self.updates > self.pairs:
            raise ValueError(f"data.updates={self.updates} is more than data.pairs={self.pairs}")
        if self.values < 2:
            raise ValueError(f"data.values={self.values} has no other value for an update; use 2 or more")
        needed = self.pairs
        different = self.keys
        if self.motif > 1:
            # Keys of several tokens are drawn independently. Samples with equal keys are left out; most must stay.
            different = 4 * self.keys
        if self.compositional:
            needed = math.isqrt(self.pairs)
            different = self.keys // 2
        if needed > different:
            raise ValueError(f"data.keys={self.keys} has too few different keys for data.pairs={self.pairs}")
        if self._needed > self.length:
            raise ValueError(
                f"data.length={self.length} is too short for {self.pairs} pairs, {self.updates} updates, {self.noise} "
                f"units of noise and the queries: {self._needed} tokens"
            )

    @property
    def _key_size(self) -> int:
        return 2 if self.compositional else self.motif

    @property
    def _needed(self) -> int:
        """The tokens of the longest sequence."""
        return (2 * self.pairs + self.updates + self.noise) * (self._key_size + self.motif)

    @property
    def vocabulary(self) -> int:
        """Tokens of keys, of values and of noise, GO, and the blank."""
        return self.keys + self.values + self.noises + 2

    def token_name(self, token_id: int) -> str:
        """Return k0, v0, x0 and the like, GO or _."""
        for letter, count in (("k", self.keys), ("v", self.values), ("x", self.noises)):
            if token_id < count:
                return f"{letter}{token_id}"
            token_id -= count
        return ("GO", "_")[token_id]

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate the units as columns of one width, some of them empty, and push the empty ones to the left."""
        samples = len(random.order)
        size = self._key_size + self.motif
        keys, key_sizes, kept = self._keys(random)  # (n, P, a), (n, P)
        values = self.keys + random.integers("values", self.pairs * self.motif, self.values)
        values = values.view(samples, -1, self.motif)  # (n, P, b)
        value_sizes = 1 + random.integers("value sizes", self.pairs, self.motif)  # (n, P)
        again = torch.empty(samples, 0).long()  # (n, U), the pairs that are updated
        if self.updates:
            again = random.distinct("updates", self.updates, self.pairs)
        # A shift from 1 on, so that the new value differs from the old one.
        shift = 1 + random.integers("shifts", max(1, self.updates), self.values - 1)[:, : self.updates]
        new = _at(values, again)  # (n, U, b)
        new[:, :, 0] = self.keys + (new[:, :, 0] - self.keys + shift) % self.values
        last = values.scatter(1, again[:, :, None].expand_as(new), new)
        # The units in front: pairs, then updates, with noise anywhere among them.
        units = _joined(keys, key_sizes, values, value_sizes)
        if self.updates:
            second = _joined(_at(keys, again), key_sizes.gather(1, again), new, value_sizes.gather(1, again))
            units = torch.cat([units, second], 1)  # (n, P + U, size)
        noise = self.keys + self.values + random.integers("noise", max(1, self.noise) * size, self.noises)
        noise = noise.view(samples, -1, size)[:, : self.noise]
        noise_sizes = 2 + random.integers("noise sizes", max(1, self.noise), size - 1)[:, : self.noise]
        noise = torch.where(torch.arange(size) < noise_sizes[:, :, None], noise, EMPTY)
        slots = random.distinct("slots", units.shape[1] + self.noise, units.shape[1] + self.noise)
        is_noise = slots < self.noise  # (n, units)
        rank = torch.where(is_noise, is_noise.cumsum(1) - 1, self.noise + (~is_noise).cumsum(1) - 1)
        front = _at(torch.cat([noise, units], 1), rank)  # (n, units, size)
        drawn = random.distinct("queries", self.pairs, self.pairs)  # (n, P)
        go = torch.full_like(last, self.vocabulary - 2)
        drawn_key_sizes = key_sizes.gather(1, drawn)
        drawn_value_sizes = value_sizes.gather(1, drawn)
        queries = _joined(_at(keys, drawn), drawn_key_sizes, _at(go, drawn), drawn_value_sizes)
        # Targets have the EMPTY slots of their queries, so that both are pushed to the right alike.
        ignored = torch.full_like(keys, Batch.ignore)
        answers = _joined(_at(ignored, drawn), drawn_key_sizes, _at(last, drawn), drawn_value_sizes)
        inputs = torch.cat([front, queries], 1).flatten(1)
        target = torch.cat([torch.full_like(front, Batch.ignore), answers], 1).flatten(1)
        inputs, target = right_aligned(inputs, target, self.length, self.vocabulary - 1)
        return TaskBatch(inputs, target).select(kept)

    def _keys(self, random: SampleRandom) -> tuple[Tensor, Tensor, Tensor]:
        """Return the keys (n, P, a), their numbers of tokens (n, P), and a mask of samples without equal keys (n,)."""
        samples = len(random.order)
        everywhere = torch.ones(samples, dtype=torch.bool)
        if self.compositional:
            side = math.isqrt(self.pairs)
            half = self.keys // 2
            first = random.distinct("first", side, half).repeat_interleave(side, 1)  # (n, P)
            second = half + random.distinct("second", side, self.keys - half).repeat(1, side)
            order = random.distinct("order", self.pairs, self.pairs)
            keys = torch.stack([first, second], 2)
            return _at(keys, order), torch.full((samples, self.pairs), 2), everywhere
        if self.motif == 1:
            keys = random.distinct("keys", self.pairs, self.keys)[:, :, None]
            return keys, torch.ones(samples, self.pairs, dtype=torch.int64), everywhere
        keys = random.integers("keys", self.pairs * self.motif, self.keys).view(samples, -1, self.motif)
        sizes = 1 + random.integers("key sizes", self.pairs, self.motif)
        shown = torch.where(torch.arange(self.motif) < sizes[:, :, None], keys, EMPTY)
        equal = (shown[:, :, None] == shown[:, None]).all(3)  # (n, P, P), each key with itself too
        return keys, sizes, equal.sum((1, 2)) == self.pairs


def _at(units: Tensor, order: Tensor) -> Tensor:
    """Return (n, k, size), the units (n, m, size) at the indices `order` (n, k)."""
    return units.gather(1, order[:, :, None].expand(-1, -1, units.shape[2]))


def _joined(keys: Tensor, key_sizes: Tensor, values: Tensor, value_sizes: Tensor) -> Tensor:
    """Return units of a key and a value (n, m, a + b), EMPTY where either has fewer tokens."""
    keys = keys.where(torch.arange(keys.shape[2]) < key_sizes[:, :, None], EMPTY)
    values = values.where(torch.arange(values.shape[2]) < value_sizes[:, :, None], EMPTY)
    return torch.cat([keys, values], 2)
