"""No channel mixing: a block has only the branch of the token mixer, without a second norm.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, with toy models of attention only
Reference: none in torch, timm or transformers
Equation: 0
Cost: nothing
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.contracts import ChannelMixer, Context, Seq


class NoChannels(ChannelMixer):
    """Adds nothing, so a block omits the branch and its norm.

    Options:
    """

    empty: ClassVar[bool] = True

    def __init__(self, ctx: Context) -> None:
        super().__init__()

    def forward(self, x: Tensor, seq: Seq | None = None) -> Tensor:
        """x (B, N, D) -> zeros (B, N, D)."""
        return x.new_zeros(x.shape)
