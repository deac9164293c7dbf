"""Norm after the branch: each mixer reads the stream as it is, and a normalised copy of its output is added to it.

Source: Liu et al. 2022, Swin Transformer V2 (arXiv 2111.09883), section 3.2 (res-post-norm); OLMo Team 2024, 2 OLMo 2
    Furious (arXiv 2501.00656)
Reference: transformers Olmo2DecoderLayer; timm models/vision_transformer.py, ResPostBlock
Equation: x + norm(token(x)), then x + norm(channel(x))
Cost: that of its mixers

    x --+--> token mixer --> norm --(+)--+--> channel mixer --> norm --(+)--> x
        |                            |   |                              |
        +----------------------------+   +------------------------------+
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory, as_weights
from blockyard.contracts import Context, Memory, Seq
from blockyard.contracts.inherited_options import with_options_of


class BranchNorm(BranchedBlock):
    """The norm fixes the size of the output of a branch. Inputs of mixers may grow, so qk_norm helps."""

    against_zero: ClassVar[str | None] = "norms what a branch gives, and zeros have no direction"

    @with_options_of(BranchedBlock)
    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        **options: Any,
    ) -> None:
        self.output_norm = partial(norm, ctx)  # read by the constructor
        super().__init__(ctx, token_mixer, channel_mixer, _as_it_is, **options)

    def finish(self) -> nn.Module:
        """Return the norm of a branch."""
        return self.output_norm()

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """Add a branch that reads the memory, with the norm after the mixer."""
        super().add_cross(ctx, mixer, _as_it_is)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            y = self._token(x, seq, cache, memory)
            x = x + self.drop(self.token_finish(as_weights(y, self.token_finish)))
        if self.cross_norm is not None:
            y = self._cross(x, seq, memory)
            x = x + self.drop(self.cross_finish(as_weights(y, self.cross_finish)))
        if self.channel_norm is not None:
            y = self.channel_mixer(x, seq)
            x = x + self.drop(self.channel_finish(as_weights(y, self.channel_finish)))
        return x


def _as_it_is(_: Context) -> nn.Module:
    """Return the norm in front of a mixer: none."""
    return nn.Identity()
