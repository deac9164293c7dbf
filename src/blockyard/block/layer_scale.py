"""LayerScale: pre-norm with a learned factor on each channel of a branch, small at first.

Source: Touvron et al. 2021, Going deeper with Image Transformers (arXiv 2103.17239), eq. 4 and section 2
Reference: timm layers/layer_scale.py, LayerScale; timm models/vision_transformer.py, Block with init_values
Equation: x + a * token(norm(x)), then x + b * channel(norm(x)), with a and b in R^D
Cost: that of its mixers, and 2 D parameters

    x --+--> norm --> token mixer --> * a --(+)--+--> norm --> channel mixer --> * b --(+)--> x
        |                                    |   |                                     |
        +------------------------------------+   +-------------------------------------+
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.block._base import BranchedBlock, ChannelFactory, MixerFactory, NormFactory
from blockyard.contracts import Context, Memory, Positive, Role, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.weight_init import Init


class Scale(nn.Module):
    """A learned factor for each channel."""

    roles: ClassVar[dict[str, Role]] = {"weight": "vector"}

    def __init__(self, dim: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(dim))

    def init_weights(self, init: Init) -> None:
        """Set every channel to the same small number."""
        init.constant("weight", self.start)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return x * self.weight


class LayerScale(BranchedBlock):
    """Each block starts near the identity.

    Options:
        start: initial factor; null is the paper's by depth: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond
    """

    @with_options_of(BranchedBlock)
    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        start: Positive | None = None,
        **options: Any,
    ) -> None:
        self.start = start  # read by the constructor
        super().__init__(ctx, token_mixer, channel_mixer, norm, **options)

    def finish(self) -> nn.Module:
        """Return a factor for each channel."""
        start = self.start
        if start is None:
            # Section 2 of the paper: the deeper the model, the nearer to the identity its blocks start.
            if self.ctx.visits <= 18:
                start = 0.1
            elif self.ctx.visits <= 24:
                start = 1e-5
            else:
                start = 1e-6
        return Scale(self.ctx.dim, start)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        if self.token_norm is not None:
            x = x + self.drop(self.token_finish(self._token(self.token_norm(x), seq, cache, memory)))
        if self.cross_norm is not None:
            x = x + self.drop(self.cross_finish(self._cross(self.cross_norm(x), seq, memory)))
        if self.channel_norm is not None:
            x = x + self.drop(self.channel_finish(self.channel_mixer(self.channel_norm(x), seq)))
        return x
