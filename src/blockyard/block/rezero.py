"""ReZero: each branch is multiplied by one learned number, zero at first.

Source: Bachlechner et al. 2020, ReZero is All You Need (arXiv 2003.04887), eq. 1
Reference: none in torch, timm or transformers
Equation: x + a token(norm(x)), then x + b channel(norm(x)), a and b numbers; the paper's has norm=none
Cost: that of its mixers, and two parameters

    x --+--> norm --> token mixer --> a --(+)--+--> norm --> channel mixer --> b --(+)--> x
        |                                  |   |                                   |
        +----------------------------------+   +-----------------------------------+
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.block._base import BranchedBlock
from blockyard.contracts import Memory, Role, Seq
from blockyard.weight_init import Init


class Gate(nn.Module):
    """One learned factor, zero at first."""

    roles: ClassVar[dict[str, Role]] = {"weight": "fixed"}

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))

    def init_weights(self, init: Init) -> None:
        """Set the factor to zero."""
        init.zeros("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return x * self.weight


class ReZero(BranchedBlock):
    """The model starts as the identity, so in the first step only the gates have a gradient."""

    against_zero: ClassVar[str | None] = "has gates that start at zero, and behind two zeros nothing is trained"

    def finish(self) -> nn.Module:
        """Return a gate."""
        return Gate()

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = x + self.drop(self.token_finish(self._token(self.token_norm(x), seq, cache, memory)))
        if self.cross_norm is not None:
            x = x + self.drop(self.cross_finish(self._cross(self.cross_norm(x), seq, memory)))
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_finish(self.channel_mixer(self.channel_norm(x), seq)))
        return x
