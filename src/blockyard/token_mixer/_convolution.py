"""What convolutions share: full and depthwise ones differ in how channels are grouped."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual_gain
from blockyard.token_mixer._declared import check_call, check_context
from blockyard.token_mixer._neighbours import check_size, full_grid, neighbour, steps, window
from blockyard.token_mixer._state import RowCache
from blockyard.weight_init import Init


class Convolution(TokenMixer):
    """A weight for each step of a neighbourhood; what lies outside counts as zero."""

    traits: ClassVar[Traits] = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, kernel: int, bias: bool, groups: int) -> None:
        super().__init__()
        check_context(self, ctx)
        check_size("kernel", kernel, ctx.tokens.axes, ctx.causal)
        self.kernel, self.axes, self.causal, self.groups = kernel, ctx.tokens.axes, ctx.causal, groups
        self.steps = steps(kernel, self.axes, ctx.causal)
        self.window = window(kernel, self.axes, ctx.tokens.grid)
        # On a causal grid the steps are the first of a whole square: those above, and to the left.
        self.weight = nn.Parameter(torch.empty(ctx.dim, ctx.dim // groups, len(self.steps)))
        self.bias = nn.Parameter(torch.empty(ctx.dim)) if bias else None
        self.std = residual_gain(ctx) / math.sqrt(self.weight[0].numel())

    def init_weights(self, init: Init) -> None:
        """Unit inputs give outputs as large as what any residual layer writes; zero bias."""
        init.normal("weight", std=self.std)
        init.zeros("bias")

    def init_cache(self, batch_size: int) -> RowCache:
        """An empty cache, of as many inputs as the kernel looks back to."""
        if not self.causal:
            raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")
        return RowCache(batch_size, self.window)

    def forward(self, x: Tensor, seq: Seq, cache: RowCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        if cache is not None:
            rows, k_seq = cache.append(x, seq)
            return self._stepwise(rows, seq, k_seq)
        if seq.segment is None and (self.axes == 1 or full_grid(seq, 2)):
            return self._fast(x, seq)
        return self._stepwise(x, seq, seq)

    def _fast(self, x: Tensor, seq: Seq) -> Tensor:
        """By torch's convolution, over whole lines and grids: (B, N, D)."""
        if seq.valid is not None:
            x = x.masked_fill(~seq.valid[..., None], 0.0)
        if self.axes == 1:
            ends = (self.kernel - 1, 0) if self.causal else (self.kernel // 2,) * 2
            line = F.pad(x.transpose(1, 2), ends)  # (B, D, N + kernel - 1)
            return F.conv1d(line, self.weight, self.bias, groups=self.groups).transpose(1, 2)  # (B, N, D)
        square = F.pad(self.weight, (0, self.kernel**2 - len(self.steps))).unflatten(-1, (self.kernel, self.kernel))
        image = x.transpose(1, 2).unflatten(2, seq.grid)  # (B, D, rows, columns)
        out = F.conv2d(image, square, self.bias, padding=self.kernel // 2, groups=self.groups)
        return out.flatten(2).transpose(1, 2)  # (B, N, D)

    def _stepwise(self, x: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """The same, step by step: packed rows, tokens that are no full grid, and what follows a cache."""
        out = x.new_zeros(x.shape[0], len(seq), x.shape[2]) if self.bias is None else self.bias.to(x.dtype)
        for number, step in enumerate(self.steps):
            value, _ = neighbour(x, seq, step, k_seq)
            weight = self.weight[..., number]  # (D, D / groups)
            out = out + (value * weight[:, 0] if self.groups > 1 else F.linear(value, weight))
        return out  # (B, N, D)
