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
    """A token mixer and a channel mixer, each with a norm of its own; how a branch joins the stream is the block's.

    What a mixer gives goes through `finish`, a module for each branch: what a block does there besides (a
    second norm, a scale). A mixer that adds nothing has no branch, no norm and no such module.
    """

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        dropout: Rate,
        drop_path: Rate,
        finish: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.finish = finish
        self.token_mixer = token_mixer(ctx)
        check_context(self.token_mixer, ctx)
        self.channel_mixer = channel_mixer(ctx)
        token, channel = not self.token_mixer.empty, not self.channel_mixer.empty
        check_mixers(self)
        self.token_norm = norm(ctx) if token else None
        self.token_finish = finish() if token else None
        self.channel_norm = norm(ctx) if channel else None
        self.channel_finish = finish() if channel else None
        self.branch = Branch(ctx, dropout, drop_path)
        self.cross_norm: nn.Module | None = None
        self.cross_mixer: TokenMixer | None = None
        self.cross_finish: nn.Module | None = None

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """A branch between the two that reads the memory, with a norm of its own; it has no order of time."""
        self.cross_norm, self.cross_mixer = norm(ctx), mixer(replace(ctx, causal=False))
        self.cross_finish = self.finish()

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). The token mixer reads the memory where no branch of its own does."""
        if self.token_norm is not None:
            mine = memory if self.cross_mixer is None else None
            x = self.join(
                x, self.token_norm, lambda h: self.token_finish(self.given(self.token_mixer(h, seq, cache, mine)))
            )
        if self.cross_norm is not None:
            assert memory is not None, "a block with cross-attention is always given a memory"
            x = self.join(
                x, self.cross_norm, lambda h: self.cross_finish(self.given(self.cross_mixer(h, seq, None, memory)))
            )
        if self.channel_norm is not None:
            x = self.join(x, self.channel_norm, lambda h: self.channel_finish(self.given(self.channel_mixer(h))))
        return x  # (B, N, D)

    def given(self, y: Tensor) -> Tensor:
        """What a mixer gave, y (B, N, D), as `finish` takes it."""
        return y

    def join(self, x: Tensor, norm: nn.Module, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        """One branch beside, or in, the stream: x (B, N, D) -> (B, N, D)."""
        raise AssertionError("abstract")


def check_mixers(block: Block) -> None:
    """Raises ValueError where a block has no use for the mixers it was given."""
    token, channel = not block.token_mixer.empty, not block.channel_mixer.empty
    if not token and not channel:
        raise ValueError(
            "token_mixer and channel_mixer both add nothing, so that a block does nothing; use another of either"
        )
    if block.single and channel:
        raise ValueError(
            f"block {type(block).__name__} has one mixer, that of the tokens, for which channel_mixer "
            f"{type(block.channel_mixer).__name__} has no place; use channel_mixer=none"
        )
