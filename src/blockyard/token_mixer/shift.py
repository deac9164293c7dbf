"""Spatial shift: parts of the channels are moved by one token, each part in another direction; no weights mix tokens.

Source: Yu et al. 2022, S2-MLP: Spatial-Shift MLP Architecture for Vision (arXiv 2106.07477), section 3.3
Reference: the pseudo-code of the paper, algorithm 1
Equation: W2 shift(gelu(W1 x))
Cost: O(N D^2) time for the two projections, the shift is free; decoding keeps one input a line, or one row of a grid

    grid: quarters of the channels come from the left, the right, above, below
    line: halves come from before and after
    causal: a part that would come from later stays where it is
    A token at an edge keeps its own channels.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._declared import check_call, check_context
from blockyard.token_mixer._neighbours import neighbour
from blockyard.token_mixer._state import RowCache

# Where each part of the channels comes from, in the paper's order.
FROM = {1: [(-1,), (1,)], 2: [(-1, 0), (1, 0), (0, -1), (0, 1)]}


def shifted(
    x: Tensor, seq: Seq, causal: bool, axes: int, k_x: Tensor | None = None, k_seq: Seq | None = None
) -> Tensor:
    """Channels x (B, N, C) from the neighbours, their own where there is none: (B, N, C).

    k_x (B, M, C) of `k_seq` are the tokens to take from where a cache has kept some; None is x itself.
    """
    source = x if k_x is None else k_x
    parts = []
    for own, others, step in zip(
        x.tensor_split(len(FROM[axes]), -1), source.tensor_split(len(FROM[axes]), -1), FROM[axes], strict=True
    ):
        if causal and step > (0,) * axes:
            parts.append(own)
            continue
        value, real = neighbour(others, seq, step, k_seq)
        parts.append(torch.where(real, value, own))
    return torch.cat(parts, dim=-1)  # (B, N, C)


class Shift(TokenMixer):
    """Between two projections of each token alone, channels change places with those of the next tokens.

    Options:
        bias: biases in the projections
    """

    traits: ClassVar[Traits] = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, *, bias: bool = True) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal, self.axes = ctx.causal, ctx.tokens.axes
        if ctx.dim < len(FROM[self.axes]):
            raise ValueError(f"model.dim={ctx.dim} has no channels for {len(FROM[self.axes])} directions; use more")
        self.window = 1 if self.axes == 1 else ctx.tokens.grid[1]
        self.proj_in = linear(ctx, ctx.dim, ctx.dim, bias=bias, content=0)
        self.proj_out = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: RowCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))

    def mix(self, h: Tensor, seq: Seq, cache: RowCache | None = None) -> Tensor:
        """What lies between the projections: (B, N, D) -> (B, N, D)."""
        h = F.gelu(h)
        k_h, k_seq = (None, None) if cache is None else cache.append(h, seq)
        return shifted(h, seq, self.causal, self.axes, k_h, k_seq)

    def init_cache(self, batch_size: int) -> RowCache:
        """An empty cache, of the tokens that the next one can take from."""
        if not self.causal:
            raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")
        return RowCache(batch_size, self.window)
