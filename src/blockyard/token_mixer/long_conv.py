"""Long convolution: weights of any distance from a small network of the distance, applied by FFT.

Source: Romero et al. 2021, CKConv (arXiv 2102.02611), eq. 5; decay of the weights and sines in the network as in
    Poli et al. 2023, Hyena Hierarchy (arXiv 2302.10866), section 3.3
Reference: the authors' safari, HyenaFilter; torch.nn.Conv1d with the weights written out
Equation: y_i = sum_j g(i - j) x_j for each channel, g(d) = net(d) exp(-rate |d|), or zero from `cutoff` on
Cost: O(N D log N) time on lines and full grids, parameters do not depend on N; O(N^2 D) for packed rows, tokens that
    are no full grid and tokens after a cache, which keeps all inputs, or the last cutoff - 1
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Count, Memory, Seq, TokenMixer, Traits
from blockyard.ops import mask
from blockyard.ops.full_precision import full_precision
from blockyard.ops.linear import Linear, residual_gain
from blockyard.token_mixer._declared import check_call, check_context
from blockyard.token_mixer._neighbours import full_grid
from blockyard.token_mixer._state import RowCache

FAST, SLOW, LEFT = 0.3, 1.5, 1e-2  # of the row: where the fastest and the slowest channel has LEFT of its weight left


class Weights(nn.Module):
    """g(d) for every channel, from the distance d along each axis."""

    def __init__(self, ctx: Context, width: int, waves: int) -> None:
        super().__init__()
        self.axes, self.waves = ctx.tokens.axes, waves
        self.scale = max(ctx.tokens.grid)
        self.rates = (-math.log(LEFT) / SLOW, -math.log(LEFT) / FAST)
        features = self.axes * (1 + 2 * waves)
        self.enter = Linear(features, width, bias=True, std=features**-0.5)
        self.inner = Linear(width, width, bias=True, std=width**-0.5)
        # A sum over a row of unit tokens comes out as large as what any residual layer writes.
        std = residual_gain(ctx) * (width * ctx.tokens.max_len) ** -0.5
        self.leave = Linear(width, ctx.dim, bias=False, std=std)

    def forward(self, distance: Tensor) -> Tensor:
        """distance (..., A) in tokens -> (..., D)."""
        far = distance / self.scale
        wave = torch.arange(1, self.waves + 1, dtype=far.dtype, device=far.device) * math.pi  # (waves,)
        angle = (far[..., None] * wave).flatten(-2)  # (..., A waves)
        hidden = torch.sin(self.enter(torch.cat([far, angle.sin(), angle.cos()], dim=-1)))
        weights = self.leave(torch.sin(self.inner(hidden)))  # (..., D)
        rate = torch.linspace(*self.rates, weights.shape[-1], dtype=far.dtype, device=far.device)  # (D,)
        return weights * torch.exp(-rate * far.abs().sum(-1, keepdim=True))


class LongConv(TokenMixer):
    """A convolution as long as the row; padding, other documents and the outside count as zero.

    Options:
        cutoff: distance from which on weights are zero, which makes it a convolution; null is none
        width: hidden channels of the network that gives the weights
        waves: sines and cosines of the distance that the network reads, besides the distance itself
    """

    traits: ClassVar[Traits] = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, *, cutoff: Count | None = None, width: Count = 32, waves: Count = 8) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal, self.axes, self.cutoff = ctx.causal, ctx.tokens.axes, cutoff
        self.grid = ctx.tokens.grid
        self.weights = Weights(ctx, width, waves)

    def forward(self, x: Tensor, seq: Seq, cache: RowCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D), worked out in float32 at least: the transform knows no less."""
        check_call(self, self.traits, seq, cache, memory)
        with full_precision(x):
            exact = x.to(torch.promote_types(x.dtype, torch.float32))
            if seq.valid is not None:
                exact = exact.masked_fill(~seq.valid[..., None], 0.0)
            if cache is not None:
                rows, k_seq = cache.append(exact, seq)
                out = self._one_by_one(rows, seq, k_seq)
            elif seq.segment is None and (self.axes == 1 or full_grid(seq, 2)):
                out = self._transformed(exact, (len(seq),) if self.axes == 1 else seq.grid)
            else:
                out = self._one_by_one(exact, seq, seq)
        return out.to(x.dtype)

    def init_cache(self, batch_size: int) -> RowCache:
        """An empty cache. Raises ValueError where outputs depend on the future."""
        if not self.causal:
            raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")
        if self.cutoff is None:
            return RowCache(batch_size, None)
        reach = self.cutoff - 1
        return RowCache(batch_size, reach if self.axes == 1 else reach * self.grid[1] + reach)

    def kernel(self, distance: Tensor) -> Tensor:
        """g at whole distances (..., A) of a token from what it takes in, both along each axis: (..., D)."""
        weights = self.weights(distance)
        keep = distance.new_ones(distance.shape[:-1], dtype=torch.bool)
        if self.causal:  # what is later is a negative distance, on a grid along the first axis that differs
            keep = distance[..., 0] >= 0
            if self.axes == 2:
                keep = (distance[..., 0] > 0) | ((distance[..., 0] == 0) & (distance[..., 1] >= 0))
        if self.cutoff is not None:
            keep = keep & (distance.abs().amax(-1) < self.cutoff)
        return weights * keep[..., None]

    def _transformed(self, x: Tensor, grid: tuple[int, ...]) -> Tensor:
        """By a transform of twice the sides, so that nothing comes round from the other end: (B, N, D)."""
        sides, dims = tuple(2 * side for side in grid), tuple(range(1, 1 + self.axes))
        lines = [torch.arange(n, device=x.device, dtype=x.dtype) for n in sides]
        lines = [torch.where(line < n / 2, line, line - n) for line, n in zip(lines, sides, strict=True)]
        distance = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1)  # (*sides, A)
        weights = torch.fft.rfftn(self.kernel(distance)[None], dim=dims)
        spread = torch.fft.rfftn(x.unflatten(1, grid), s=sides, dim=dims)
        out = torch.fft.irfftn(spread * weights, s=sides, dim=dims)  # (B, *sides, D)
        for axis, side in enumerate(grid):
            out = out.narrow(1 + axis, 0, side)
        return out.flatten(1, self.axes)  # (B, N, D)

    def _one_by_one(self, x: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """Every pair of tokens: x (B, M, D) of `k_seq` -> (B, N, D)."""
        if self.axes == 1:
            distance = (seq.index[:, None] - k_seq.index)[None, ..., None]  # (1, N, M, 1)
        else:
            distance = (seq.coords[:, :, None] - k_seq.coords[:, None]).round()  # (B|1, N, M, A)
        weights = self.kernel(distance.to(x.dtype))  # (B|1, N, M, D)
        see = mask.table(seq, k_seq, self.causal)  # (B|1, 1, N, M) or None
        if see is not None:
            weights = weights * see[:, 0, ..., None]
        return (weights * x[:, None]).sum(2)  # (B, N, D)
