"""Single: one norm and one mixer that does the work of both; channel_mixer is none.

Source: Hua et al. 2022, Transformer Quality in Linear Time (arXiv 2202.10447), section 2.2 (gated attention unit);
    Cheng et al. 2024, MONet (arXiv 2401.17992); with plain attention the attention-only models of Elhage et al. 2021
Reference: none in torch, timm or transformers
Equation: x + mixer(norm(x))
Cost: that of its mixer

    x --+--> norm --> token mixer --(+)--> x
        |                            |
        +----------------------------+
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from blockyard.block._base import BranchedBlock
from blockyard.contracts import Memory, Seq


class Single(BranchedBlock):
    """One branch. Cross-attention, if any, is a second branch with a norm of its own."""

    single: ClassVar[bool] = True

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = x + self.drop(self._token(self.token_norm(x), seq, cache, memory))
        if self.cross_norm is not None:
            x = x + self.drop(self._cross(self.cross_norm(x), seq, memory))
        return x
