"""Multi-query associative recall: pairs of a key and a value, then keys whose values are asked.

Source: Arora et al. 2023, Zoology: Measuring and Improving Recall (arXiv 2312.04927), section 3
Reference: zoology data/associative_recall.py (multiquery_ar)

    inputs   k3 v8 k1 v2 k7 v7 .  k7 .  .  k3 .  .  k1 ...     . is any other symbol, none of the row's keys
    target                        v7       v8       v2         only where a key stands for the second time

Keys are the first half of the vocabulary, values the second. How far a question lies from the pairs
follows a power law, as in the paper; there the vocabulary has 8,192 symbols and fillers may repeat keys.
"""

from __future__ import annotations

import torch

from blockyard.contracts import Batch, Count, CountOrZero, Positive
from blockyard.data._synthetic import Draw, Made, Probe


class AssociativeRecall(Probe):
    """Keys are asked once each, at even places after the pairs.

    Options:
        pairs: keys with their values at the front of a row, each asked once; needs length >= 4 * pairs
        symbols: the vocabulary, half of it keys
        power: exponent a of the distance of a question, P(d) ~ d^(a - 1); small keeps most of them near
    """

    def __init__(
        self,
        *,
        length: Count = 64,
        pairs: Count = 8,
        symbols: Count = 256,
        power: Positive = 0.01,
        samples: Count = 20_000,
        eval_samples: Count = 1_000,
        data_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
    ) -> None:
        super().__init__(
            length=length,
            samples=samples,
            eval_samples=eval_samples,
            data_seed=data_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
        )
        if 4 * pairs > length:
            raise ValueError(f"data.pairs={pairs} need data.length={length} to be {4 * pairs} or more")
        if symbols < 2 * pairs + 2:
            raise ValueError(f"data.symbols={symbols} has too few for {pairs} keys; take {2 * pairs + 2} or more")
        self.pairs, self.symbols, self.power = pairs, symbols, power

    @property
    def vocabulary(self) -> int:
        """Keys and values."""
        return self.symbols

    def token_name(self, symbol: int) -> str:
        """k0, k1, ... are keys, v0, v1, ... values."""
        half = self.symbols // 2
        return f"k{symbol}" if symbol < half else f"v{symbol - half}"

    def make(self, draw: Draw) -> Made:
        """Pairs, then questions between fillers."""
        half, pairs, front = self.symbols // 2, self.pairs, 2 * self.pairs
        keys = draw.distinct("keys", pairs, half)  # (n, P)
        values = half + draw.whole("values", pairs, self.symbols - half)  # (n, P)
        inputs = draw.whole("fillers", self.length, self.symbols)  # (n, N)
        # A filler that is one of the row's keys would ask, or answer, beside the rule.
        strays = (inputs[:, :, None] == keys[:, None, :]).any(2)
        inputs = torch.where(strays, half + inputs % (self.symbols - half), inputs)
        inputs[:, 0:front:2], inputs[:, 1:front:2] = keys, values
        # Gaps drawn without replacement by their weights: the largest of log weight + Gumbel noise.
        gaps = (self.length - front) // 2
        weights = torch.arange(1, gaps + 1, dtype=torch.float64).log() * (self.power - 1)
        noise = -(-draw.unit("gaps", gaps).clamp_min(1e-12).log()).log()
        places = front + 2 * (weights + noise).topk(pairs, 1).indices  # (n, P)
        inputs.scatter_(1, places, keys)
        target = torch.full_like(inputs, Batch.ignore).scatter_(1, places, values)
        return Made(inputs, target)
