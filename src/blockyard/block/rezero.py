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

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Rate, Role, Seq
from blockyard.weight_init import Init


class Gate(nn.Module):
    """One learned factor, zero at first."""

    roles: ClassVar[dict[str, Role]] = {"weight": "fixed"}

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))

    def init_weights(self, init: Init) -> None:
        """Zero."""
        init.zeros("weight")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return x * self.weight


class ReZero(BranchedBlock):
    """The model starts as the identity, so in the first step only the gates have a gradient.

    Options:
        dropout: dropout rate on the output of each mixer
        drop_path: stochastic depth: rate at which a sample skips a branch of the last block; linearly less before it
    """

    against_zero: ClassVar[str | None] = "has gates that start at zero, and behind two zeros nothing is trained"

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, token_mixer, channel_mixer, norm, dropout, drop_path, finish=Gate)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = x + self.drop(self.token_finish(self._token(self.token_norm(x), seq, cache, memory)))
        if self.cross_norm is not None:
            x = x + self.drop(self.cross_finish(self._cross(self.cross_norm(x), seq, memory)))
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_finish(self.channel_mixer(self.channel_norm(x), seq)))
        return x
