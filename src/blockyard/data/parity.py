"""Parity: whether a row of bits holds an odd number of ones.

Source: Minsky and Papert 1969, Perceptrons, chapter 3; for attention Hahn 2020, Theoretical Limitations of
    Self-Attention in Neural Sequence Models (arXiv 1906.06755), section 5; for other networks Deletang et al. 2023,
    Neural Networks and the Chomsky Hierarchy (arXiv 2207.02098)
Reference: deepmind/neural_networks_chomsky_hierarchy, tasks/regular/parity_check.py

    inputs          1 0 1 1
    target (row)    1              one class a row
    target (each)   1 1 0 1        the parity so far, at every bit
"""

from __future__ import annotations

from typing import Literal

import torch

from blockyard.contracts import Count, CountOrZero, DataSpec
from blockyard.data._synthetic import Draw, Made, Probe


class Parity(Probe):
    """Fair bits.

    Options:
        ask: row asks for the parity of the whole as a class; each asks at every bit for that of the bits so far
    """

    def __init__(
        self,
        *,
        length: Count = 32,
        ask: Literal["row", "each"] = "row",
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
        self.ask = ask

    @property
    def vocabulary(self) -> int:
        """Two bits."""
        return 2

    def token_name(self, symbol: int) -> str:
        """The bit."""
        return str(symbol)

    @property
    def spec(self) -> DataSpec:
        """A class of two a row, or a symbol of two at each place."""
        classes = 2 if self.ask == "row" else None
        target = "class" if self.ask == "row" else "symbols"
        return DataSpec("symbols", (self.length,), target=target, classes=classes, vocabulary=2, resizable=True)

    def make(self, draw: Draw) -> Made:
        """Bits, and their sums modulo two."""
        bits = draw.whole("bits", self.length, 2)  # (n, N)
        odd = bits.cumsum(1) % 2  # (n, N)
        return Made(bits, odd[:, -1] if self.ask == "row" else torch.as_tensor(odd))
