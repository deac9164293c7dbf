"""The convolution of `conv` and `depthwise_conv`; the two differ in the groups of channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Role, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual_gain
from blockyard.token_mixer._caches import InputCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer._neighbours import at_offset, cache_window, check_size, full_grid, offsets
from blockyard.weight_init import Init


class Convolution(TokenMixer):
    """A weight for each offset of a neighbourhood. Neighbours outside the sequence count as zero."""

    traits = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(self, ctx: Context, kernel: int, bias: bool, groups: int) -> None:
        super().__init__()
        check_context(self, ctx)
        check_size("kernel", kernel, ctx.tokens.axes, ctx.causal)
        self.kernel = kernel
        self.axes = ctx.tokens.axes
        self.causal = ctx.causal
        self.groups = groups
        self.offsets = offsets(kernel, self.axes, ctx.causal)
        self.window = cache_window(kernel, ctx.tokens)
        # On a causal grid these are the first offsets of the full square: above, and to the left.
        self.weight = nn.Parameter(torch.empty(ctx.dim, ctx.dim // groups, len(self.offsets)))
        self.bias = nn.Parameter(torch.empty(ctx.dim)) if bias else None
        # A depthwise weight is a number for each channel, not a map between channels.
        self.roles: dict[str, Role] = {"weight": "vector" if groups == ctx.dim else "residual"}
        self.std = residual_gain(ctx) / math.sqrt(self.weight[0].numel())

    def init_weights(self, init: Init) -> None:
        """Draw weights so that unit inputs give outputs of the scale of any residual layer; zero bias."""
        init.normal("weight", std=self.std)
        init.zeros("bias")

    def init_cache(self, batch_size: int) -> InputCache:
        """Return an empty cache that keeps as many inputs as the kernel reaches back to."""
        check_decodes(self.causal)
        return InputCache(batch_size, self.window)

    def forward(self, x: Tensor, seq: Seq, cache: InputCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        if cache is not None:
            past, k_seq = cache.append(x, seq)  # (B, M, D)
            return self._by_offset(past, seq, k_seq)
        # torch's convolution knows neither documents nor grids with holes.
        if seq.segment is None and (self.axes == 1 or full_grid(seq, 2)):
            return self._convolve(x, seq)
        return self._by_offset(x, seq, seq)

    def _convolve(self, x: Tensor, seq: Seq) -> Tensor:
        """Convolve a whole line or a full grid by torch: (B, N, D)."""
        if seq.valid is not None:
            x = x.masked_fill(~seq.valid[..., None], 0.0)
        if self.axes == 1:
            ends = (self.kernel - 1, 0) if self.causal else (self.kernel // 2,) * 2
            line = F.pad(x.transpose(1, 2), ends)  # (B, D, N + kernel - 1)
            return F.conv1d(line, self.weight, self.bias, groups=self.groups).transpose(1, 2)  # (B, N, D)
        assert seq.grid is not None
        later = self.kernel**2 - len(self.offsets)  # causal offsets come first, so zeros behind them mask later tokens
        square = F.pad(self.weight, (0, later)).unflatten(-1, (self.kernel, self.kernel))  # (D, D / groups, k, k)
        image = x.transpose(1, 2).unflatten(2, seq.grid)  # (B, D, rows, columns)
        out = F.conv2d(image, square, self.bias, padding=self.kernel // 2, groups=self.groups)
        return out.flatten(2).transpose(1, 2)  # (B, N, D)

    def _by_offset(self, x: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """Convolve one offset at a time: for packed sequences, incomplete grids, and decoding from a cache."""
        out = x.new_zeros(x.shape[0], len(seq), x.shape[2]) if self.bias is None else self.bias.to(x.dtype)
        for index, offset in enumerate(self.offsets):
            value, _ = at_offset(x, seq, offset, k_seq, self.causal)  # (B, N, D)
            weight = self.weight[..., index]  # (D, D / groups)
            out = out + (value * weight[:, 0] if self.groups > 1 else F.linear(value, weight))
        return out  # (B, N, D)
