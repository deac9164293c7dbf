"""Selective copying: the tokens to repeat stand at random positions, in their order.

Source: Gu and Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (arXiv 2312.00752),
    section 3.1 and 4.1.1; after Jing et al. 2019, Gated Orthogonal Recurrent Units (arXiv 1706.02761)
Reference: state-spaces/s4 src/dataloaders/synthetics.py (copying, variable)

    inputs   _ 5 _ _ 2 _ 7 _ GO GO GO        _ is a blank
    target                   5  2  7

A filter that depends on the position alone, such as a convolution, cannot select what to remember.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blockyard.contracts import Length, Vocabulary
from blockyard.data.copy import Copy
from blockyard.data.splits.synthetic import SampleRandom


@dataclass(kw_only=True, eq=False)
class SelectiveCopy(Copy):
    """The task `copy` with blanks between the tokens. The paper has 16 tokens in sequences of 4,096."""

    held: Length = 16
    alphabet: Vocabulary = 16

    def positions(self, random: SampleRandom) -> Tensor:
        """Return different positions before the first GO, ascending (n, held)."""
        return random.distinct("places", self.held, self.length - self.held).sort(1).values
