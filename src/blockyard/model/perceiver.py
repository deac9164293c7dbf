"""Perceiver: a few learned vectors read the input once, and the blocks run over them alone.

Source: Jaegle et al. 2021, Perceiver (arXiv 2103.03206), figure 1; Jaegle et al. 2022, Perceiver IO (arXiv 2107.14795),
    section 3, for reading once and for one output a token
Reference: transformers PerceiverModel
Cost: O(N M D) time to read N tokens with M latents, then that of its blocks over M tokens, independent of N

    tokens ----------+                          +--- tokens (if the head gives one output a token)
                     v                          v
    latents --> cross mixer --> blocks --> [cross mixer] --> head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from torch import nn

from blockyard.contracts import Context, Depth, Heads, Length, Parts, Positive, Rate, TokenMixer, TokenSpec, Width
from blockyard.model._latents import PerceiverModel
from blockyard.model._stack import CROSS, Stack, crossing


class Perceiver(Stack):
    """The cost of the blocks does not depend on the length of the input.

    Latents have no coordinates: positions are added to the tokens of the input before they are read.

    Options:
        depth: blocks over the latents
        num_latents: learned vectors (M)
        cross: the mixer with which latents read tokens, and tokens read latents
        dropout: dropout rate on the tokens before they are read
    """

    causal: ClassVar[bool] = False
    latents: ClassVar[bool] = True

    def __init__(
        self,
        *,
        dim: Width = 64,
        depth: Depth = 4,
        heads: Heads = 4,
        num_latents: Length = 16,
        cross: Callable[[Context], TokenMixer] = CROSS,
        init_std: Positive | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(dim=dim, depth=depth, heads=heads, init_std=init_std, dropout=dropout)
        self.num_latents, self.cross = num_latents, crossing(cross)

    def mixing(self, ctx: Context) -> Context:
        """Returns the Context of the latents: the same number for every sample, without coordinates."""
        data = replace(ctx.data, variable=False)
        return replace(ctx, tokens=TokenSpec((), count=self.num_latents), data=data)

    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """Returns the model of `ctx`. Raises ValueError if its parts contradict each other."""
        return PerceiverModel(ctx, self.mixing(ctx), parts, cross=self.cross, dropout=self.dropout)
