"""Long convolution: a small network computes the weight of every distance; applied by FFT.

Source: Romero et al. 2021, CKConv (arXiv 2102.02611), eq. 5; decay of the weights and sines in the network, gates and
    short convolution as in Poli et al. 2023, Hyena Hierarchy (arXiv 2302.10866), sections 3.1 and 3.3
Reference: the authors' safari, HyenaFilter and HyenaOperator of order 2; torch.nn.Conv1d with the weights written out
Equation: y_i = sum_j g(i - j) x_j, g(d) = net(d) exp(-rate |d|), or zero from `cutoff` on; g(d) is a number for each
    channel, or with mixing=full a matrix (D, D). coordinates=relative has y_i = prod_a r_a sum_j g(r (i - j)) x_j, r_a
    the number of tokens along axis a in training over that of the sequence: a sum that approximates an integral. With
    gated=true b, c, v = conv(W x), z = b * v and y_i = W_o (c_i * (sum_j g(i - j) z_j + s * z_i)), s of each channel
Cost: O(N D log N) time on lines and full grids, parameters independent of N; O(N^2 D) for packed sequences, incomplete
    grids and decoding, whose cache keeps all inputs, or the last cutoff - 1. With mixing=full D times that; with
    gated=true 4 D^2 parameters more, and three inputs in place of one in the cache

    gated=true conv=3                                                 Hyena of order 2
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import ChoiceOptions, Context, Length, Memory, Role, Seq, TokenMixer, Traits, Width
from blockyard.ops import mask
from blockyard.ops.autocast import full_precision
from blockyard.ops.linear import Linear, linear, residual, residual_gain
from blockyard.ops.mask import Visibility
from blockyard.token_mixer._caches import InputCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer._neighbours import cache_window, full_grid
from blockyard.token_mixer._short_conv import Kernel, ShortConv
from blockyard.weight_init import Init

FAST = 0.3  # share of the sequence length at which the fastest channel has decayed to REMAINDER
SLOW = 1.5  # the same of the slowest channel
REMAINDER = 1e-2
LARGEST = 2**25  # weights of matrices: 128 MiB in float32


class Weights(nn.Module):
    """The network g(d): weights of every channel, or pair of channels, from the distance d along each axis."""

    def __init__(self, ctx: Context, width: int, waves: int, full: bool, gain: float) -> None:
        super().__init__()
        self.dim = ctx.dim
        self.full = full
        self.axes = ctx.tokens.axes
        self.waves = waves
        self.scale = max(ctx.tokens.grid)
        self.rates = (-math.log(REMAINDER) / SLOW, -math.log(REMAINDER) / FAST)
        features = self.axes * (1 + 2 * waves)
        self.enter = Linear(features, width, bias=True, std=features**-0.5, role="fixed")
        self.inner = Linear(width, width, bias=True, std=width**-0.5, role="fixed")
        # A sum over a sequence of unit tokens has the scale `gain`.
        inputs = ctx.dim if full else 1  # channels that an output sums over
        std = gain * (width * ctx.tokens.max_len * inputs) ** -0.5
        self.leave = Linear(width, ctx.dim * inputs, bias=False, std=std, role="residual" if full else "input")
        self.leave.fades = "it gives weights, over which an output sums" if full else None

    def forward(self, distance: Tensor) -> Tensor:
        """distance (..., A) in tokens -> (..., D), or (..., D, D): output by input channels."""
        d = distance / self.scale
        wave = torch.arange(1, self.waves + 1, dtype=d.dtype, device=d.device) * math.pi  # (waves,)
        angle = (d[..., None] * wave).flatten(-2)  # (..., A waves)
        hidden = torch.sin(self.enter(torch.cat([d, angle.sin(), angle.cos()], dim=-1)))
        weights = self.leave(torch.sin(self.inner(hidden)))  # (..., D) or (..., D D)
        rate = torch.linspace(*self.rates, self.dim, dtype=d.dtype, device=d.device)  # (D,)
        decay = torch.exp(-rate * d.abs().sum(-1, keepdim=True))  # (..., D)
        if not self.full:
            return weights * decay
        return weights.unflatten(-1, (self.dim, self.dim)) * decay[..., None]


class Gates(nn.Module):
    """The parts around the convolution with `gated`: projections, short convolution and two gates."""

    roles: ClassVar[dict[str, Role]] = {"through": "vector"}

    def __init__(self, ctx: Context, conv: int) -> None:
        super().__init__()
        self.proj_in = linear(ctx, ctx.dim, 3 * ctx.dim, content=0)  # c, b, v
        self.conv = ShortConv(3 * ctx.dim, conv) if conv else None
        self.reach = max(0, conv - 1)
        self.through = nn.Parameter(torch.empty(ctx.dim))  # s
        self.proj_out = residual(ctx, ctx.dim, ctx.dim)

    def init_weights(self, init: Init) -> None:
        """Set the factor s of inputs that pass the convolution by to one."""
        init.ones("through")

    def enter(self, h: Tensor, seq: Seq) -> tuple[Tensor, Tensor]:
        """The projections h (B, N, 3 D) -> the gate c and z = b * v, 2 x (B, N, D)."""
        convolved = h if self.conv is None else self.conv(h, seq)
        after, before, v = convolved.chunk(3, dim=-1)
        return after, before * v

    def leave(self, after: Tensor, sums: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
        """The gate c, the sums of the convolution and its inputs z, (B, N, D) each -> (B, N, D)."""
        return self.proj_out((after * (sums + self.through.to(z.dtype) * z)).to(dtype))


class LongConv(TokenMixer):
    """A convolution as long as the sequence; padding, other documents and the outside count as zero.

    Options:
        cutoff: distance from which on weights are zero, as in a short convolution; null means no cutoff
        width: hidden channels of the network that computes the weights
        waves: number of sines and cosines of the distance that the network reads, besides the distance itself
        coordinates: unit of the distances that g reads: tokens (index), or shares of the sequence or image (relative),
            so that it can be evaluated at another resolution than in training
        mixing: channel weighs each channel alone; full makes every output channel a sum over all input channels
        gated: convolve the product of two projections of the tokens, multiply the sum by a third one, and project it
        conv: tokens that a short convolution of the three projections reads, the token itself included; 0 leaves it
            out
    """

    traits = Traits(causal=True, padding=True, packing=True, prefix=False, axes=frozenset({1, 2}))

    def __init__(
        self,
        ctx: Context,
        *,
        cutoff: Length | None = None,
        width: Width = 32,
        waves: Width = 8,
        coordinates: Literal["index", "relative"] = "index",
        mixing: Literal["channel", "full"] = "channel",
        gated: bool = False,
        conv: Kernel = 0,
    ) -> None:
        super().__init__()
        self.relative = coordinates == "relative"
        self.traits = _traits(self.traits, coordinates)
        if self.relative and (ctx.causal or ctx.tokens.variable or ctx.data.packed):
            why = "a causal model does not know how long its sequence will be"
            if not ctx.causal:
                what = "packed with others" if ctx.data.packed else "of different lengths"
                why = f"sequences are {what}, so that a distance is another share of each"
            raise ValueError(f"token_mixer.coordinates=relative: {why}; use coordinates=index")
        check_context(self, ctx)
        if conv and (not gated or self.relative):
            why = "it reads a number of tokens, not a share of the sequence" if gated else "it is of the projections"
            remedy = "conv=0" if gated else "token_mixer.gated=true"
            raise ValueError(f"token_mixer.conv={conv}: {why}; use {remedy}")
        self.full = mixing == "full"
        count = math.prod(2 * side for side in ctx.tokens.grid) * ctx.dim**2
        if self.full and count > LARGEST:
            raise ValueError(
                f"token_mixer.mixing=full computes {count:,} weights for {ctx.tokens.max_len} tokens of {ctx.dim} "
                f"channels, more than {LARGEST:,}; use a smaller model.dim, fewer tokens, or token_mixer.mixing=channel"
            )
        self.causal, self.axes, self.cutoff = ctx.causal, ctx.tokens.axes, cutoff
        self.tokens = ctx.tokens
        # The scale of any residual layer is that of the last layer: the projection, where there is one.
        self.weights = Weights(ctx, width, waves, self.full, 1.0 if gated else residual_gain(ctx))
        self.gates = Gates(ctx, conv) if gated else None

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """A share of the sequence needs all of it, and nothing else in the same row."""
        return _traits(cls.traits, options.get("coordinates", "index"))

    def forward(self, x: Tensor, seq: Seq, cache: InputCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). Sums are in float32 at least: the FFT supports no less."""
        check_call(self, self.traits, seq, cache, memory)
        h, k_seq = x if self.gates is None else self.gates.proj_in(x), None
        if cache is not None:
            exact = h.to(torch.promote_types(h.dtype, torch.float32))
            h, k_seq = cache.append(_real(exact, seq), seq)
        if self.gates is None:
            return self._sums(h, seq, k_seq).to(x.dtype)
        after, z = self.gates.enter(h, seq if k_seq is None else k_seq)  # 2 x (B, M, D)
        new = slice(h.shape[1] - len(seq), None)
        return self.gates.leave(after[:, new], self._sums(z, seq, k_seq), z[:, new], x.dtype)

    def _sums(self, x: Tensor, seq: Seq, k_seq: Seq | None) -> Tensor:
        """Return the convolution at the tokens of `seq`, in float32 at least: (B, N, D).

        x: (B, M, D), the tokens of `k_seq`
        k_seq: facts of the tokens with the cached ones in front; None without a cache
        """
        with full_precision(x):
            exact = x.to(torch.promote_types(x.dtype, torch.float32))
            if k_seq is not None:
                return self._pairwise(exact, seq, k_seq)
            exact = _real(exact, seq)
            if seq.segment is None and self.axes == 1:
                return self._by_fft(exact, (len(seq),))
            if seq.segment is None and seq.grid is not None and full_grid(seq, 2):
                return self._by_fft(exact, seq.grid)
            return self._pairwise(exact, seq, seq)

    def init_cache(self, batch_size: int) -> InputCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        if self.cutoff is None:
            return InputCache(batch_size, None)
        reach = self.cutoff - 1
        window = reach if self.axes == 1 else cache_window(2 * reach + 1, self.tokens)
        # The short convolution at the earliest input in reach needs a few inputs more.
        further = 0 if self.gates is None else self.gates.reach
        return InputCache(batch_size, window + further)

    def kernel(self, distance: Tensor, sides: tuple[int, ...] | None = None) -> Tensor:
        """Return g at integer distances (..., A) from key to query along each axis: (..., D), or (..., D, D).

        sides: number of tokens of the sequence along each axis; None for a part of a sequence as in training
        """
        share = 1.0
        if self.relative and sides is not None and sides != self.tokens.grid:
            ratios = [trained / side for trained, side in zip(self.tokens.grid, sides, strict=True)]
            distance = distance * distance.new_tensor(ratios)
            share = math.prod(ratios)
        weights = self.weights(distance)
        if share != 1.0:
            weights = weights * share
        keep = distance.new_ones(distance.shape[:-1], dtype=torch.bool)
        if self.causal:  # later tokens have a negative distance, on a grid along the first axis that differs
            keep = distance[..., 0] >= 0
            if self.axes == 2:
                keep = (distance[..., 0] > 0) | ((distance[..., 0] == 0) & (distance[..., 1] >= 0))
        if self.cutoff is not None:
            keep = keep & (distance.abs().amax(-1) < self.cutoff)
        return weights * (keep[..., None, None] if self.full else keep[..., None])

    def _by_fft(self, x: Tensor, grid: tuple[int, ...]) -> Tensor:
        """Convolve a line or a full grid by FFT: (B, N, D)."""
        sides = tuple(2 * side for side in grid)  # twice as long, so that nothing wraps around
        dims = tuple(range(1, 1 + self.axes))
        lines = [torch.arange(n, device=x.device, dtype=x.dtype) for n in sides]
        # The second half of a spectrum of length n has the negative distances.
        lines = [torch.where(line < n / 2, line, line - n) for line, n in zip(lines, sides, strict=True)]
        distance = torch.stack(torch.meshgrid(*lines, indexing="ij"), dim=-1)  # (*sides, A)
        weights = torch.fft.rfftn(self.kernel(distance, grid)[None], dim=dims)
        spectrum = torch.fft.rfftn(x.unflatten(1, grid), s=sides, dim=dims)
        product = torch.einsum("b...i,...oi->b...o", spectrum, weights[0]) if self.full else spectrum * weights
        out = torch.fft.irfftn(product, s=sides, dim=dims)  # (B, *sides, D)
        for axis, side in enumerate(grid):
            out = out.narrow(1 + axis, 0, side)
        return out.flatten(1, self.axes)  # (B, N, D)

    def _pairwise(self, x: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """Convolve by the weight of every pair of tokens: x (B, M, D) of `k_seq` -> (B, N, D)."""
        if self.axes == 1:
            distance = (seq.index[:, None] - k_seq.index)[None, ..., None]  # (1, N, M, 1)
        else:
            distance = (seq.token_coords[:, :, None] - k_seq.token_coords[:, None]).round()  # (B|1, N, M, A)
        weights = self.kernel(distance.to(x.dtype))  # (B|1, N, M, D) or (B|1, N, M, D, D)
        see = mask.table(seq, k_seq, Visibility(self.causal))  # (B|1, 1, N, M) or None
        if see is not None:
            weights = weights * (see[:, 0, ..., None, None] if self.full else see[:, 0, ..., None])
        if self.full:
            return torch.einsum("bnmoi,bmi->bno", weights.expand(len(x), -1, -1, -1, -1), x)
        return (weights * x[:, None]).sum(2)  # (B, N, D)


def _real(x: Tensor, seq: Seq) -> Tensor:
    """Return x (B, N, C) with zeros at padding."""
    if seq.valid is None:
        return x
    return x.masked_fill(~seq.valid[..., None], 0.0)


def _traits(traits: Traits, coordinates: str) -> Traits:
    if coordinates == "index":
        return traits
    return replace(traits, causal=False, padding=False, packing=False)
