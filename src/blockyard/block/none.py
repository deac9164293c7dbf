"""No block: for models without blocks.

Source: none; it states that a config has no blocks
Reference: torch.nn.Identity
Equation: x
Cost: nothing
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from blockyard.block._base import ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Block, Context, Memory, Seq


class NoBlock(Block):
    """Returns the stream as it is, and builds none of the parts of a block.

    Options:
    """

    empty: ClassVar[bool] = True

    def __init__(
        self, ctx: Context, token_mixer: MixerFactory, channel_mixer: ChannelFactory, norm: NormFactory
    ) -> None:
        super().__init__()

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return x
