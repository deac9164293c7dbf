"""Sandwich: a norm before and after each mixer, the second on what is added to the stream.

Source: Ding et al. 2021, CogView (arXiv 2105.13290), section 2.4 (Sandwich-LN)
Reference: transformers Gemma2DecoderLayer
Equation: x + norm(token(norm(x))), then x + norm(channel(norm(x)))
Cost: that of its mixers, and four norms

    x --+--> norm --> token mixer --> norm --(+)--+--> norm --> channel mixer --> norm --(+)--> x
        |                                     |   |                                      |
        +-------------------------------------+   +--------------------------------------+
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from blockyard.block._base import BranchedBlock, as_weights
from blockyard.contracts import Memory, Seq


class Sandwich(BranchedBlock):
    """The second norm fixes the size of the output of a branch, for any weights in front of it."""

    against_zero: ClassVar[str | None] = "norms what a branch gives, and zeros have no direction"

    def finish(self) -> nn.Module:
        """Return a second norm."""
        return self.new_norm()

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            y = self._token(self.token_norm(x), seq, cache, memory)
            x = x + self.drop(self.token_finish(as_weights(y, self.token_finish)))
        if self.cross_norm is not None:
            y = self._cross(self.cross_norm(x), seq, memory)
            x = x + self.drop(self.cross_finish(as_weights(y, self.cross_finish)))
        if self.channel_norm is not None:
            y = self.channel_mixer(self.channel_norm(x), seq)
            x = x + self.drop(self.channel_finish(as_weights(y, self.channel_finish)))
        return x
