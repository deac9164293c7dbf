"""Parallel: both mixers read the same normalised stream, and the sum of their outputs is added to it.

Source: Wang and Komatsuzaki 2021, GPT-J-6B; Dehghani et al. 2023, ViT-22B (arXiv 2302.05442), section 2.1
Reference: timm models/vision_transformer.py, ParallelScalingBlock
Equation: x + token(norm(x)) + channel(norm(x))
Cost: that of its mixers, in half as many matmuls if fused

                +--> token mixer ----+
    x --+--> norm                    (+)--(+)--> x
        |       +--> channel mixer --+     |
        +----------------------------------+
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.block._base import BranchDropout, ChannelFactory, MixerFactory, NormFactory, check_mixers
from blockyard.contracts import Block, ChoiceOptions, Context, Memory, Projected, Rate, Seq, TokenMixer
from blockyard.token_mixer._checks import check_call, check_context


class Parallel(Block):
    """Both mixers in parallel. Fused or not, parameters and checkpoints are the same.

    Options:
        fused: compute the input projections of both mixers in one matmul, and the output projections in another
        dropout: dropout rate on the sum of the outputs of the mixers
        drop_path: stochastic depth: rate at which a sample skips the last block; linearly less for blocks before it
    """

    def __init__(
        self,
        ctx: Context,
        token_mixer: MixerFactory,
        channel_mixer: ChannelFactory,
        norm: NormFactory,
        *,
        fused: bool = True,
        dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
    ) -> None:
        super().__init__()
        self.token_norm = norm(ctx)
        self.token_mixer = token_mixer(ctx)
        check_context(self.token_mixer, ctx)
        self.channel_mixer = channel_mixer(ctx)
        check_mixers(self, self.token_mixer, self.channel_mixer)
        self.cross_mixer: TokenMixer | None = None
        self.drop = BranchDropout(ctx, dropout, drop_path)
        self.fused = fused
        if fused:
            for mixer in (self.token_mixer, self.channel_mixer):
                _check_projected(mixer)

    def add_cross(self, ctx: Context, mixer: MixerFactory, norm: NormFactory) -> None:
        """Add a third mixer in parallel that reads the memory. All three share one norm."""
        self.cross_mixer = mixer(replace(ctx, causal=False))

    @classmethod
    def fuses(cls, options: ChoiceOptions) -> bool:
        """Return whether both mixers must be `Projected`."""
        return bool(options.get("fused", True))

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        h = self.token_norm(x)
        # Without a cross-attention mixer the token mixer reads the memory. Its queries then come from one sequence
        # and its keys from another, and no fused projection computes both.
        token_memory = memory if self.cross_mixer is None else None
        if self.fused and token_memory is None:
            added = self._fused(h, seq, cache)
        else:
            added = self._unfused(h, seq, cache, token_memory)
        if self.cross_mixer is not None:
            added = added + self.cross_mixer(h, seq, None, memory)
        return x + self.drop(added)  # (B, N, D)

    def _unfused(self, h: Tensor, seq: Seq, cache: Any, memory: Memory | None) -> Tensor:
        """Return the sum of the outputs of both mixers, run one by one on h (B, N, D). An empty mixer is left out."""
        if self.token_mixer.empty:
            return self.channel_mixer(h, seq)
        added = self.token_mixer(h, seq, cache, memory)  # (B, N, D)
        if self.channel_mixer.empty:
            return added
        return added + self.channel_mixer(h, seq)

    def _fused(self, h: Tensor, seq: Seq, cache: Any) -> Tensor:
        """Return the sum of the outputs of both mixers on h (B, N, D), in two matmuls."""
        check_call(self.token_mixer, self.token_mixer.traits, seq, cache, None)
        token = cast(Projected, self.token_mixer)
        channel = cast(Projected, self.channel_mixer)
        # Weights are concatenated at every call, so that gradients reach the weights of each mixer.
        weight = torch.cat([token.proj_in.weight, channel.proj_in.weight])  # (E + E', D)
        joined = F.linear(h, weight, _joined_bias(token.proj_in, channel.proj_in))  # (B, N, E + E')
        token_part, channel_part = joined.split([token.proj_in.out_features, channel.proj_in.out_features], dim=-1)
        mixed = torch.cat([token.mix(token_part, seq, cache), channel.mix(channel_part)], dim=-1)
        weight = torch.cat([token.proj_out.weight, channel.proj_out.weight], dim=1)  # (D, ...)
        return F.linear(mixed, weight, _added_bias(token.proj_out, channel.proj_out))


def _joined_bias(*layers: nn.Linear) -> Tensor | None:
    """Return the biases one after the other, zeros for a layer without one; None if no layer has one."""
    if all(layer.bias is None for layer in layers):
        return None
    biases: list[Tensor] = []
    for layer in layers:
        biases.append(layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias)
    return torch.cat(biases)  # (E + E',)


def _added_bias(*layers: nn.Linear) -> Tensor | None:
    """Return the sum of the biases, or None if no layer has one."""
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return torch.stack(biases).sum(0) if biases else None  # (D,)


def _check_projected(mixer: nn.Module) -> None:
    """Raise ValueError if a mixer has no projections to fuse."""
    ends = [getattr(mixer, name, None) for name in ("proj_in", "proj_out")]
    if not all(isinstance(end, nn.Linear) for end in ends) or not callable(getattr(mixer, "mix", None)):
        raise ValueError(
            f"block.fused=true joins the projections of both mixers, and {type(mixer).__name__} has none to join; "
            "use block.fused=false"
        )
