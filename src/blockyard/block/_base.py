"""What blocks share: their parts, and what is done to a branch before it joins the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Block, ChannelMixer, Context, Memory, Rate, Seq, TokenMixer
from blockyard.token_mixer._declared import check_context

MixerFactory = Callable[[Context], TokenMixer]
ChannelFactory = Callable[[Context], ChannelMixer]
NormFactory = Callable[[Context], nn.Module]


class Branch(nn.Module):
    """Dropout, then stochastic depth: a sample skips the whole branch with `drop_path`.

    Source of the latter: Huang et al. 2016 (arXiv 1603.09382); its rate grows linearly with depth.
    """

    def __init__(self, ctx: Context, dropout: Rate, drop_path: Rate) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        # A model of one block has only a last one, which takes the full rate.
        self.drop_path = drop_path * (ctx.layer / (ctx.depth - 1) if ctx.depth > 1 else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        x = self.dropout(x)
        if not self.training or self.drop_path == 0.0:
            return x
        keep = 1.0 - self.drop_path
        kept = torch.empty((x.shape[0], 1, 1), dtype=x.dtype, device=x.device).bernoulli_(keep)
        return x * kept / keep


class TwoBranches(Block):
    """A token mixer and a channel mixer, each with a norm of its own."""

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        dropout: Rate,
        drop_path: Rate,
    ) -> None:
        super().__init__()
        self.token_norm = norm(ctx)
        self.token_mixer = token_mixer(ctx)
        check_context(self.token_mixer, ctx)
        self.channel_norm = norm(ctx)
        self.channel_mixer = channel_mixer(ctx)
        self.branch = Branch(ctx, dropout, drop_path)
        self.cross_norm: nn.Module | None = None
        self.cross_mixer: TokenMixer | None = None

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """A branch between the two that reads the memory, with a norm of its own; it has no order of time."""
        self.cross_norm, self.cross_mixer = norm(ctx), mixer(replace(ctx, causal=False))

    def mix(self, x: Tensor, seq: Seq, cache: Any, memory: Memory | None) -> Tensor:
        """What the token mixer adds: (B, N, D). It reads the memory where no branch of its own does."""
        return self.branch(self.token_mixer(x, seq, cache, memory if self.cross_mixer is None else None))

    def cross(self, x: Tensor, seq: Seq, memory: Memory | None) -> Tensor:
        """What the branch that reads the memory adds: (B, N, D)."""
        assert self.cross_mixer is not None
        assert memory is not None, "a block with cross-attention is always given a memory"
        return self.branch(self.cross_mixer(x, seq, None, memory))
