"""Add: every block reads the stream, and its output is the stream that the next block reads.

Source: He et al. 2016, Deep Residual Learning (arXiv 1512.03385), eq. 1
Reference: torch.nn.Sequential over the blocks
Equation: x_{l+1} = block_l(x_l)
Cost: none
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.contracts import Residual


class Add(Residual):
    """One stream; each block adds the outputs of its branches to it. It has no weights."""

    empty: ClassVar[bool] = True
    per_visit: ClassVar[bool] = False

    def read(self, state: Tensor, visit: int) -> tuple[Tensor, Tensor]:
        """Return the stream (B, N, D), twice."""
        return state, state

    def write(self, state: Tensor, visit: int, x: Tensor, output: Tensor) -> Tensor:
        """Return the output of the block."""
        return output

    def close(self, state: Tensor) -> Tensor:
        """Return the stream."""
        return state
