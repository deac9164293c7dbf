"""Parity: whether a sequence of bits holds an odd number of ones.

Source: Minsky and Papert 1969, Perceptrons, chapter 3; for attention Hahn 2020, Theoretical Limitations of
    Self-Attention in Neural Sequence Models (arXiv 1906.06755), section 5; for other networks Deletang et al. 2023,
    Neural Networks and the Chomsky Hierarchy (arXiv 2207.02098)
Reference: deepmind/neural_networks_chomsky_hierarchy, tasks/regular/parity_check.py

    inputs          1 0 1 1
    target (row)    1              one class for the sequence
    target (each)   1 1 0 1        the parity so far, at every bit
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from blockyard.contracts import DataSpec, Length
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch


@dataclass(kw_only=True, eq=False)
class Parity(SyntheticTask):
    """Bits that are 0 or 1 with equal probability.

    Options:
        ask: row gives the parity of the whole sequence as a class; each gives that of the bits so far at every bit
    """

    length: Length = 32
    ask: Literal["row", "each"] = "row"

    @property
    def vocabulary(self) -> int:
        """0 and 1."""
        return 2

    def token_name(self, token_id: int) -> str:
        """Return the bit."""
        return str(token_id)

    @property
    def spec(self) -> DataSpec:
        """One of two classes per sequence, or one of two token ids per position."""
        spec = DataSpec("symbols", (self.length,), target="symbols", vocabulary=2, resizable=True)
        if self.ask == "row":
            return replace(spec, target="class", classes=2)
        return spec

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate bits and their sums modulo two."""
        bits = random.integers("bits", self.length, 2)  # (n, N)
        odd = bits.cumsum(1) % 2  # (n, N)
        if self.ask == "row":
            return TaskBatch(bits, odd[:, -1])
        return TaskBatch(bits, odd)
