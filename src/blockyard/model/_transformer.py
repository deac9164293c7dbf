"""The model that every architecture builds: tokens, position, prefix, blocks, norm, head.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm --> head
               |                                                  ^
               +---- Seq: index, coords, valid, segment ----------+---- position.rotate, position.bias
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Parts, Rate, Seq, TokenMixer
from blockyard.model._fit import check_call, check_parts
from blockyard.model._place import place, placing_parts
from blockyard.model._prefix import Prefix, PrefixTokens
from blockyard.ops import kernel, mask
from blockyard.ops.attend import prepare
from blockyard.ops.cache import cache_bytes


@dataclass
class Cache:
    """What a decoder keeps of the tokens so far. length: tokens, without the prefix; layers: one cache each."""

    layers: list[Any]
    length: int = 0

    @property
    def bytes(self) -> int:
        """What the caches of all layers fill."""
        return cache_bytes(self)


class Transformer(nn.Module):
    """Blocks over tokens: forward(inputs, lengths, segment, cache) -> (B, V) or (B, N, V)."""

    def __init__(self, ctx: Context, parts: Parts, *, prefix: Prefix, dropout: Rate) -> None:
        super().__init__()
        self.ctx, self.prefix_options = ctx, prefix
        self.embedder, self.position = placing_parts(ctx, parts)
        self.dropout = nn.Dropout(dropout)
        self.prefix = PrefixTokens(ctx, prefix) if prefix else None
        factories = (parts.token_mixer, parts.channel_mixer, parts.norm)
        self.blocks = nn.ModuleList(parts.block(ctx.at(layer), *factories) for layer in range(ctx.depth))
        self.final_norm = parts.norm(ctx) if self.blocks[-1].needs_final_norm else nn.Identity()
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_parts(ctx, prefix, self.position, self.mixers, self.head)

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block, in order."""
        return [next(m for m in block.modules() if isinstance(m, TokenMixer)) for block in self.blocks]

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Predictions for a batch. With a cache, `inputs` are the new tokens only."""
        prediction = None
        for _, prediction in self._steps(inputs, lengths, segment, cache):  # noqa: B007 - the last one counts
            pass
        return prediction

    def steps(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        cache: Cache | None = None,
    ) -> dict[str, Any]:
        """Every intermediate of a forward pass by name, so that a probe needs no hooks.

        embedded (B, N, D - position.width); placed (B, N, D); stream, block.0, block.1, ... and normed
        (B, prefix + N, D); seq, the facts of that row; prediction.
        """
        return dict(self._steps(inputs, lengths, segment, cache))

    def _steps(
        self, inputs: Tensor, lengths: Tensor | None, segment: Tensor | None, cache: Cache | None
    ) -> Iterator[tuple[str, Any]]:
        check_call(self.ctx, self.prefix_options, lengths, segment, cache is not None)
        past = 0 if cache is None else cache.length
        x, seq = self.embedder(inputs, lengths, segment, past)
        new = len(seq)
        if torch.is_autocast_enabled(inputs.device.type if inputs.device.type != "meta" else "cpu"):
            # A projection comes out in half precision; the stream that all blocks add to must not.
            x = x.float()
        yield "embedded", x
        x = place(self.ctx, self.position, x, seq, past)
        yield "placed", x
        x, seq = self._with_prefix(x, seq, past)
        yield "seq", seq
        x = self.dropout(x)
        yield "stream", x
        for number, block in enumerate(self.blocks):
            x = block(x, seq, None if cache is None else cache.layers[number], None)
            yield f"block.{number}", x
        if cache is not None:
            cache.length += new
        x = self.final_norm(x)
        yield "normed", x
        yield "prediction", self.head(x, seq)

    def _with_prefix(self, x: Tensor, seq: Seq, past: int) -> tuple[Tensor, Seq]:
        """The prefix goes before the first token of a stream, and shifts the index of the rest."""
        if self.prefix is not None and past == 0:
            x, seq = self.prefix(x, seq)
        elif self.prefix is not None:
            seq.index = seq.index + self.prefix.num
        if past == 0 and not torch.compiler.is_compiling():
            self._prepare(x, seq)
        return x, seq

    def _prepare(self, x: Tensor, seq: Seq) -> None:
        """Masks are the same in all layers, so they are made once, where there are any."""
        if not mask.reasons(seq, seq, self.ctx.causal):
            return
        attending = [mixer for mixer in self.mixers if "scores" in mixer.traits.ports]
        if attending:
            rate = max(getattr(mixer, "dropout", 0.0) for mixer in attending) if self.training else 0.0
            prepare(seq, self.ctx.causal, self.ctx.heads, self.ctx.head_dim, x, rate)

    def init_cache(self, batch_size: int) -> Cache:
        """An empty cache for `batch_size` rows. Raises ValueError naming the mixer that cannot have one."""
        for mixer in self.mixers:
            if not hasattr(mixer, "init_cache"):
                raise ValueError(
                    f"token_mixer {type(mixer).__name__} cannot decode from a cache; run the whole row again "
                    "for each token, or use token_mixer=attention"
                )
        return Cache([mixer.init_cache(batch_size) for mixer in self.mixers])

    def kernels(
        self,
        inputs: Tensor | None = None,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> list[kernel.Record]:
        """Which kernel each layer's mixer takes for this batch, and why none faster.

        Without a batch, one full row of zeros is asked about, on the model's device, with the lengths
        and segments that such data brings.
        """
        if inputs is None:
            device = next(self.parameters()).device
            if self.ctx.tokens.vocabulary is None:
                inputs = torch.zeros((1, *self.ctx.data.shape), device=device)
            else:
                inputs = torch.zeros((1, self.ctx.tokens.max_len), dtype=torch.long, device=device)
            if self.ctx.tokens.variable:
                lengths = torch.tensor([self.ctx.tokens.max_len], device=device)
            if self.ctx.data.packed:
                segment = torch.zeros((1, self.ctx.tokens.max_len), dtype=torch.long, device=device)
        return kernel.record(self, inputs, lengths, segment)
