"""Memorisation: the value of each key is the same in all sequences, and has to be kept in the weights.

Source: Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures (MAD, arXiv 2403.17844), section 3.1
Reference: athms/mad-lab mad/data/instances.py (generate_memorization_instance)

    inputs   k3 ?  k1 ?  k9 ?
    target      v5    v2    v5      the value of k3 is v5 in every sequence

The sequence itself tells nothing about the values: a task for channel mixers and width, not for token mixers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockyard.contracts import Batch, Length, Vocabulary
from blockyard.data.splits.order import mix
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch


@dataclass(kw_only=True, eq=False)
class Memorisation(SyntheticTask):
    """Keys drawn independently, each with a question behind it. Which value a key has follows from `data_seed`.

    Options:
        length: tokens of a sequence, an even number
        keys: number of different keys
        values: number of different values; several keys may share one
    """

    length: Length = 32
    keys: Vocabulary = 256
    values: Vocabulary = 256

    def __post_init__(self) -> None:
        if self.length % 2:
            raise ValueError(f"data.length={self.length} must be even: each key has a question behind it")

    @property
    def vocabulary(self) -> int:
        """Keys, values, and the question."""
        return self.keys + self.values + 1

    def token_name(self, token_id: int) -> str:
        """Return k0, k1, ... for keys, v0, v1, ... for values, and the question mark."""
        if token_id < self.keys:
            return f"k{token_id}"
        if token_id == self.keys + self.values:
            return "?"
        return f"v{token_id - self.keys}"

    @property
    def table(self) -> torch.Tensor:
        """The value of each key as a token id (keys,)."""
        random = SampleRandom(mix("table", self.data_seed), torch.arange(self.keys))
        return self.keys + random.integers("values", 1, self.values)[:, 0]

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate keys with questions, and the values of the keys."""
        keys = random.integers("keys", self.length // 2, self.keys)  # (n, N / 2)
        question = torch.full_like(keys, self.keys + self.values)
        inputs = torch.stack([keys, question], 2).flatten(1)  # (n, N)
        target = torch.stack([torch.full_like(keys, Batch.ignore), self.table[keys]], 2).flatten(1)
        return TaskBatch(inputs, target)
