"""Convolutional positions: each token gets a function of its neighbours added to it.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 2; on grids, with activation=none, Chu et al. 2023,
    Conditional Positional Encodings for Vision Transformers (CPVT, arXiv 2102.10882), section 3.2
Reference: transformers Wav2Vec2PositionalConvEmbedding, which normalizes the weights
Equation: x_i + activation(b + sum_s W_s x_(i+s))
Cost: O(N D^2 kernel^A / groups) time, D^2 kernel^A / groups parameters

    line, kernel 4   . s s s s .      an even kernel reaches one token further back
                         ^

It has no coordinates, so that sequences of any length have positions. Tokens outside, padding and other documents count
as zero: from the zeros a token learns that it is near an end.
"""

from __future__ import annotations

import math
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Count, Position, Role, Seq, Side
from blockyard.position._absolute import check_axes
from blockyard.token_mixer._neighbours import at_offset, full_grid
from blockyard.weight_init import Init


class Conv(Position):
    """A grouped convolution of the tokens that is added to them before the first block; prefix tokens have none.

    Options:
        kernel: side of the neighbourhood in tokens
        groups: groups of channels that are convolved apart; null is one for each channel
        activation: activation of the sum over neighbours
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"embed_neighbours"})
    relative: ClassVar[bool] = True

    def __init__(
        self,
        ctx: Context,
        *,
        kernel: Side = 7,
        groups: Count | None = None,
        activation: Literal["gelu", "none"] = "gelu",
    ) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        groups = groups or ctx.dim
        if ctx.dim % groups:
            raise ValueError(f"position.groups={groups} does not divide model.dim={ctx.dim}")
        self.num_axes = ctx.tokens.axes
        self.kernel = kernel
        self.groups = groups
        self.activation = activation
        back = kernel // 2
        self.offsets = list(product(range(-back, kernel - back), repeat=self.num_axes))
        # Channels, channels of a group, then a weight for each offset, row by row.
        self.weight = nn.Parameter(torch.empty(ctx.dim, ctx.dim // groups, len(self.offsets)))
        self.constant = nn.Parameter(torch.empty(ctx.dim))
        self.roles: dict[str, Role] = {"weight": "vector" if groups == ctx.dim else "hidden"}

    def init_weights(self, init: Init) -> None:
        """Draw weights so that positions start at the scale of the tokens."""
        init.normal("weight", std=1 / math.sqrt(self.weight[0].numel()))
        init.zeros("constant")

    def embed_neighbours(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        whole = seq.segment is None and (self.num_axes == 1 or full_grid(seq, self.num_axes))
        out = self._convolve(x, seq) if whole else self._by_offset(x, seq)
        if self.activation == "gelu":
            out = F.gelu(out)
        return x + out  # (B, N, D)

    def _convolve(self, x: Tensor, seq: Seq) -> Tensor:
        """Convolve a whole line or a full grid by torch: (B, N, D)."""
        if seq.valid is not None:
            x = x.masked_fill(~seq.valid[..., None], 0.0)
        grid = (x.shape[1],) if self.num_axes == 1 else seq.grid
        assert grid is not None
        back = self.kernel // 2
        field = x.transpose(1, 2).unflatten(2, grid)  # (B, D, *grid)
        field = F.pad(field, (back, self.kernel - 1 - back) * self.num_axes)
        weight = self.weight.unflatten(2, (self.kernel,) * self.num_axes)
        convolve = F.conv1d if self.num_axes == 1 else F.conv2d
        out = convolve(field, weight, self.constant, groups=self.groups)  # (B, D, *grid)
        return out.flatten(2).transpose(1, 2)  # (B, N, D)

    def _by_offset(self, x: Tensor, seq: Seq) -> Tensor:
        """Convolve one offset at a time, for packed sequences and incomplete grids: (B, N, D)."""
        out = self.constant.to(x.dtype)
        weight = self.weight.unflatten(0, (self.groups, -1))  # (groups, D / groups, D / groups, offsets)
        for index, offset in enumerate(self.offsets):
            neighbour, _ = at_offset(x, seq, offset)  # (B, N, D)
            value = neighbour.unflatten(2, (self.groups, -1))  # (B, N, groups, D / groups)
            out = out + torch.einsum("bngi,goi->bngo", value, weight[..., index]).flatten(2)
        return out  # (B, N, D)
