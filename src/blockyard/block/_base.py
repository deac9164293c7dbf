"""The base of blocks: their parts, their checks, and dropout on a branch. Each block's forward is in its own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Block, ChannelMixer, Context, Memory, Rate, Seq, TokenMixer
from blockyard.token_mixer._checks import check_context

MixerFactory = Callable[[Context], TokenMixer]
ChannelFactory = Callable[[Context], ChannelMixer]
NormFactory = Callable[[Context], nn.Module]


class BranchDropout(nn.Module):
    """The factor of the parametrization, dropout, and stochastic depth, which skips the whole branch of a sample.

    The rate of stochastic depth grows linearly with depth, up to `drop_path` in the last block.

    Source: Huang et al. 2016, Deep Networks with Stochastic Depth (arXiv 1603.09382)
    """

    def __init__(self, ctx: Context, dropout: Rate, drop_path: Rate) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        # The only block of a model is its last one, so it takes the full rate.
        share = ctx.layer / (ctx.depth - 1) if ctx.depth > 1 else 1.0
        self.drop_path = drop_path * share
        self.factor = ctx.parametrization.factor("branch", ctx)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        x = self.dropout(x if self.factor == 1.0 else x * self.factor)
        if not self.training or self.drop_path == 0.0:
            return x
        # As timm.layers.DropPath, written out because importing timm takes longer than importing torch.
        keep = 1.0 - self.drop_path
        kept = torch.empty((x.shape[0], 1, 1), dtype=x.dtype, device=x.device).bernoulli_(keep)  # (B, 1, 1)
        return x * kept / keep  # in training as large on average as in evaluation


class BranchedBlock(Block):
    """The parts of a block with a branch for the token mixer, one for the channel mixer and maybe one for a memory.

    token_norm, cross_norm, channel_norm: the norm of each branch; None without the branch, because its mixer is `empty`
        or `add_cross` was not called
    token_finish, cross_finish, channel_finish: the module behind the mixer of each branch (a second norm, a scale),
        made by `finish`
    drop: dropout and stochastic depth on the output of a branch

    against_zero: the reason why branches cannot start at zero in this block, or None

    Subclasses write `forward`.

    Options:
        dropout: dropout rate on the output of each mixer
        drop_path: stochastic depth: rate at which a sample skips a branch of the last block; linearly less before it
    """

    cross_finish: nn.Module  # set by `add_cross`
    against_zero: ClassVar[str | None] = None

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
    ) -> None:
        super().__init__()
        if ctx.zero_branches and self.against_zero is not None:
            raise ValueError(
                f"model.zero_branches=true: {type(self).__name__} {self.against_zero}; use block=pre_norm, or "
                "model.zero_branches=false"
            )
        self.ctx = ctx
        self.new_norm = partial(norm, ctx)
        self.token_mixer = token_mixer(ctx)
        check_context(self.token_mixer, ctx)
        self.channel_mixer = channel_mixer(ctx)
        check_mixers(self, self.token_mixer, self.channel_mixer)
        has_token = not self.token_mixer.empty
        has_channel = not self.channel_mixer.empty
        self.token_norm = norm(ctx) if has_token else None
        self.token_finish = self.finish() if has_token else nn.Identity()
        self.channel_norm = norm(ctx) if has_channel else None
        self.channel_finish = self.finish() if has_channel else nn.Identity()
        self.drop = BranchDropout(ctx, dropout, drop_path)
        self.cross_norm: nn.Module | None = None
        self.cross_mixer: TokenMixer | None = None

    def finish(self) -> nn.Module:
        """Return a new module for the end of a branch; the identity unless a subclass has another."""
        return nn.Identity()

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """Add a branch between the two that reads the memory, with a norm of its own."""
        self.cross_norm = norm(ctx)
        self.cross_mixer = mixer(replace(ctx, causal=False))  # a memory is whole: no token of it is later
        self.cross_finish = self.finish()

    def _token(self, h: Tensor, seq: Seq, cache: Any, memory: Memory | None) -> Tensor:
        """Run the token mixer on h (B, N, D). It reads the memory only if no cross-attention branch does."""
        return self.token_mixer(h, seq, cache, memory if self.cross_mixer is None else None)

    def _cross(self, h: Tensor, seq: Seq, memory: Memory | None) -> Tensor:
        """Run the mixer of the cross-attention branch on h (B, N, D)."""
        assert self.cross_mixer is not None
        assert memory is not None, "a block with cross-attention is always given a memory"
        return self.cross_mixer(h, seq, None, memory)


def check_mixers(block: Block, token_mixer: TokenMixer, channel_mixer: ChannelMixer) -> None:
    """Raise ValueError if a block has no use for its mixers."""
    if token_mixer.empty and channel_mixer.empty:
        raise ValueError(
            "token_mixer and channel_mixer are both empty, so the block would do nothing; choose another "
            "token_mixer or channel_mixer"
        )
    if block.single and not channel_mixer.empty:
        raise ValueError(
            f"block {type(block).__name__} takes a token mixer only, and channel_mixer is "
            f"{type(channel_mixer).__name__}; use channel_mixer=none"
        )


def as_weights(y: Tensor, norm: nn.Module) -> Tensor:
    """Return y (B, N, D) in the type of the norm's weights."""
    # Mixed types, as under autocast, would cost the norm its fused kernel.
    return y.to(next(norm.parameters(), y).dtype)
