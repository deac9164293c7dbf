"""Spatial shift: groups of channels move by one token, each in another direction; no weights mix tokens.

Source: Yu et al. 2022, S2-MLP: Spatial-Shift MLP Architecture for Vision (arXiv 2106.07477), section 3.3
Reference: the pseudo-code of the paper, algorithm 1
Equation: W2 shift(gelu(W1 x))
Cost: O(N D^2) time for the two projections, the shift is free; decoding keeps one input on a line, one row of inputs on
    a grid

    grid: quarters of the channels come from above, below, the left, the right
    line: halves come from the previous and the next token
    causal: a group that would come from a later token stays in place
    A token at an edge keeps its own channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Seq, TokenMixer, TokenSpec, Traits
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._caches import InputCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer._neighbours import at_offset

# The offset that each group of channels comes from, in the paper's order, by number of axes.
DIRECTIONS: dict[int, list[tuple[int, ...]]] = {1: [(-1,), (1,)], 2: [(-1, 0), (1, 0), (0, -1), (0, 1)]}


def shifted(
    x: Tensor, seq: Seq, causal: bool, axes: int, k_x: Tensor | None = None, k_seq: Seq | None = None
) -> Tensor:
    """Return x (B, N, C) with each group of channels taken from a neighbour, or kept without one: (B, N, C).

    k_x: (B, M, C), the tokens of `k_seq` to take channels from, with a cache; None is x itself
    """
    directions = DIRECTIONS[axes]
    current = x.tensor_split(len(directions), -1)
    source = (x if k_x is None else k_x).tensor_split(len(directions), -1)
    groups = []
    for group, k_group, offset in zip(current, source, directions, strict=True):
        if causal and offset > (0,) * axes:
            groups.append(group)
            continue
        value, exists = at_offset(k_group, seq, offset, k_seq, causal)
        groups.append(torch.where(exists, value, group))
    return torch.cat(groups, dim=-1)  # (B, N, C)


def shift_window(tokens: TokenSpec) -> int:
    """Return the number of past tokens that the next one can take channels from."""
    if tokens.axes == 1:
        return 1
    # On a grid that is read row by row, the token above is one row back.
    return tokens.grid[1] if tokens.raster else tokens.max_len


class Shift(TokenMixer):
    """Shifts groups of channels to the neighbouring tokens, between two projections of each token alone.

    Options:
        bias: use biases in the projections
    """

    traits = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, *, bias: bool = True) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.axes = ctx.tokens.axes
        if ctx.dim < len(DIRECTIONS[self.axes]):
            raise ValueError(
                f"model.dim={ctx.dim} has fewer channels than the {len(DIRECTIONS[self.axes])} directions of "
                f"token_mixer=shift; use model.dim={len(DIRECTIONS[self.axes])} or more"
            )
        self.window = shift_window(ctx.tokens)
        self.proj_in = linear(ctx, ctx.dim, ctx.dim, bias=bias, content=0)
        self.proj_out = residual(ctx, ctx.dim, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: InputCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))

    def mix(self, h: Tensor, seq: Seq, cache: InputCache | None = None) -> Tensor:
        """Activation and shift between the projections: (B, N, D) -> (B, N, D)."""
        h = F.gelu(h)
        k_h, k_seq = (None, None) if cache is None else cache.append(h, seq)
        return shifted(h, seq, self.causal, self.axes, k_h, k_seq)

    def init_cache(self, batch_size: int) -> InputCache:
        """Return an empty cache that keeps the tokens the next one can take channels from."""
        check_decodes(self.causal)
        return InputCache(batch_size, self.window)
