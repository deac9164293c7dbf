"""Multi-query associative recall: key-value pairs, then keys whose values have to be recalled.

Source: Arora et al. 2023, Zoology: Measuring and Improving Recall (arXiv 2312.04927), section 3
Reference: zoology data/associative_recall.py (multiquery_ar)

    inputs   k3 v8 k1 v2 k7 v7 .  k7 .  .  k3 .  .  k1 ...     . is any other token, none of the sequence's keys
    target                        v7       v8       v2         only where a key occurs for the second time

Keys are the first half of the vocabulary, values the second. The distance of a query from the pairs
follows a power law, as in the paper; there the vocabulary has 8,192 tokens and fillers may repeat keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockyard.contracts import Batch, Length, Positive, Vocabulary
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch


@dataclass(kw_only=True, eq=False)
class AssociativeRecall(SyntheticTask):
    """Each key is queried once, at an even position after the pairs.

    Options:
        pairs: key-value pairs at the start of a sequence, each queried once; needs length >= 4 * pairs
        symbols: vocabulary size; half of the tokens are keys
        power: exponent a of the distance of a query, P(d) ~ d^(a - 1); a small one keeps most queries near
    """

    pairs: Length = 8
    symbols: Vocabulary = 256
    power: Positive = 0.01

    def __post_init__(self) -> None:
        pairs, vocabulary = self.pairs, self.symbols
        if 4 * pairs > self.length:
            raise ValueError(f"data.pairs={pairs} needs data.length={self.length} to be {4 * pairs} or more")
        if vocabulary < 2 * pairs + 2:
            raise ValueError(f"data.symbols={vocabulary} has too few for {pairs} keys; use {2 * pairs + 2} or more")

    @property
    def vocabulary(self) -> int:
        """Keys and values."""
        return self.symbols

    def token_name(self, token_id: int) -> str:
        """Return k0, k1, ... for keys and v0, v1, ... for values."""
        half = self.symbols // 2
        if token_id < half:
            return f"k{token_id}"
        return f"v{token_id - half}"

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate the pairs, then queries between fillers."""
        half = self.symbols // 2
        pairs = self.pairs
        front = 2 * pairs  # tokens of the pairs
        keys = random.distinct("keys", pairs, half)  # (n, P)
        values = half + random.integers("values", pairs, self.symbols - half)  # (n, P)
        inputs = random.integers("fillers", self.length, self.symbols)  # (n, N)
        # A filler equal to one of the sequence's keys would be a query, or a pair, that the rule does not cover.
        is_key = (inputs[:, :, None] == keys[:, None, :]).any(2)
        inputs = torch.where(is_key, half + inputs % (self.symbols - half), inputs)
        inputs[:, 0:front:2] = keys
        inputs[:, 1:front:2] = values
        # Gaps drawn without replacement by their weights: the largest of log weight + Gumbel noise.
        gaps = (self.length - front) // 2
        weights = torch.arange(1, gaps + 1, dtype=torch.float64).log() * (self.power - 1)
        noise = -(-random.uniform("gaps", gaps).clamp_min(1e-12).log()).log()
        positions = front + 2 * (weights + noise).topk(pairs, 1).indices  # (n, P)
        inputs.scatter_(1, positions, keys)
        target = torch.full_like(inputs, Batch.ignore).scatter_(1, positions, values)
        return TaskBatch(inputs, target)
