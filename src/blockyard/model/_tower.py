"""One sequence of tokens from its inputs to the final norm, the common part of all model shapes.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm
               |                                                  ^   ^
               +---- Seq: index, coords, valid, segment ----------+   +---- memory: another sequence, if there is one
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from blockyard.contracts import Block, Context, Embedder, Inputs, Memory, Parts, Rate, Seq, TokenMixer
from blockyard.model._cache import Cache, empty_cache
from blockyard.model._compatibility import check_call
from blockyard.model._embedding import Embeds, check_key_widths
from blockyard.model._prefix import Prefix, PrefixTokens
from blockyard.model._record import Record, note
from blockyard.ops.ring import shared


class Tower(Embeds):
    """Embedder, position scheme, prefix, blocks and final norm of one sequence of tokens.

    embedder: the embedder of another tower, to be shared. It stays a part of that tower, and this one has none.
    cross: the factory of a cross-attention mixer, which gives every block a further branch that reads a memory.
    """

    def __init__(
        self,
        ctx: Context,
        parts: Parts,
        *,
        prefix: Prefix,
        dropout: Rate,
        embedder: Embedder | None = None,
        cross: Callable[[Context], TokenMixer] | None = None,
    ) -> None:
        super().__init__(ctx, parts, embedder=embedder)
        self.prefix_options = prefix
        self.dropout = nn.Dropout(dropout)
        self.prefix = PrefixTokens(ctx, prefix) if prefix else None
        factories = (parts.token_mixer, parts.channel_mixer, parts.norm)
        blocks: list[Block] = [parts.block(ctx.at(layer), *factories) for layer in range(ctx.depth)]
        self.blocks = nn.ModuleList(blocks)
        check_key_widths(ctx, self.position, self.mixers)
        if cross is not None:
            for layer, block in enumerate(blocks):
                block.add_cross(ctx.at(layer), cross, parts.norm)
        self.final_norm = parts.norm(ctx) if blocks[-1].needs_final_norm else nn.Identity()

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block, in order; a block without one is left out."""
        return first_mixers(self.blocks)

    def init_cache(self, batch_size: int) -> Cache:
        """Return an empty cache for `batch_size` sequences. Raises ValueError for a mixer that cannot have one."""
        return empty_cache(self.mixers, batch_size)

    def forward_features(
        self,
        inputs: Inputs,
        cache: Cache | None = None,
        record: Record | None = None,
        *,
        memory: Memory | None = None,
        embedder: Embedder | None = None,
    ) -> tuple[Tensor, Seq]:
        """Return what a head reads: the stream after the final norm (B, prefix + N, D), and its facts."""
        check_call(self.ctx, self.prefix_options, inputs, cache is not None)
        past = 0 if cache is None else cache.length
        x, seq = self.embed_tokens(inputs, record, start=past, embedder=embedder)  # (B, N, D)
        new = len(seq)
        x, seq = self._add_prefix(x, seq, past)  # (B, prefix + N, D)
        if self.training:
            x, seq = shared(x, seq)  # this process's tokens
        x = self.mixed(x, seq, past, cache, memory, record)
        if cache is not None:
            cache.length = past + new
        return x, seq

    def mixed(
        self, x: Tensor, seq: Seq, past: int, cache: Cache | None, memory: Memory | None, record: Record | None
    ) -> Tensor:
        """Returns a stream (B, prefix + N, D) after the blocks and the final norm. past: tokens in the cache."""
        note(record, "seq", seq)
        x = self.dropout(x)
        note(record, "stream", x)
        if past == 0 and not torch.compiler.is_compiling():
            for mixer in self.mixers:
                mixer.prepare(x, seq)
        for layer, block in enumerate(self.blocks):
            x = block(x, seq, None if cache is None else cache.layers[layer], memory)
            note(record, f"block.{layer}", x)
        x = self.final_norm(x)
        note(record, "normed", x)
        return x

    def _add_prefix(self, x: Tensor, seq: Seq, past: int) -> tuple[Tensor, Seq]:
        """Put the prefix before the first token of a stream; it shifts the index of all later tokens."""
        if self.prefix is None:
            return x, seq
        if past == 0:
            return self.prefix(x, seq)
        seq.index = seq.index + self.prefix.num
        return x, seq


def first_mixers(blocks: nn.ModuleList) -> list[TokenMixer]:
    """The token mixer of each block, in order; a block without one is left out."""
    inside = ([part for part in block.modules() if isinstance(part, TokenMixer)] for block in blocks)
    return [mixers[0] for mixers in inside if mixers]
