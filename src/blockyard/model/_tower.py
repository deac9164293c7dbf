"""One row of tokens from input to the last norm: what every model shape is made of.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm
               |                                                  ^   ^
               +---- Seq: index, coords, valid, segment ----------+   +---- memory: another row, where there is one
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Embedder, Memory, Parts, Rate, Seq, TokenMixer
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_call
from blockyard.model._positions import check_turned, place, placing_parts
from blockyard.model._prefix import Prefix, PrefixTokens


class Tower(nn.Module):
    """Embedder, position, prefix, blocks and the last norm of one row of tokens.

    `embedder` is another row's, to be shared: it is then that row's part, not this one's. `cross` gives
    every block a further branch that reads a memory.
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
        super().__init__()
        self.ctx, self.prefix_options = ctx, prefix
        if embedder is None:
            self.embedder, self.position = placing_parts(ctx, parts)
        else:
            self.position = parts.position(ctx)
        self.dropout = nn.Dropout(dropout)
        self.prefix = PrefixTokens(ctx, prefix) if prefix else None
        factories = (parts.token_mixer, parts.channel_mixer, parts.norm)
        self.blocks = nn.ModuleList(parts.block(ctx.at(layer), *factories) for layer in range(ctx.depth))
        check_turned(ctx, self.position, self.mixers)
        if cross is not None:
            for layer, block in enumerate(self.blocks):
                block.add_cross(ctx.at(layer), cross, parts.norm)
        self.final_norm = parts.norm(ctx) if self.blocks[-1].needs_final_norm else nn.Identity()

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block, in order; a block without one is passed over."""
        inside = ((m for m in block.modules() if isinstance(m, TokenMixer)) for block in self.blocks)
        return [mixer for found in inside for mixer in islice(found, 1)]

    def walk(
        self,
        embedder: Embedder,
        inputs: Tensor,
        lengths: Tensor | None,
        segment: Tensor | None,
        cache: Cache | None = None,
        memory: Memory | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Every intermediate of one pass by name, in order; "seq" and "normed" are what a head reads."""
        check_call(self.ctx, self.prefix_options, lengths, segment, cache is not None)
        past = 0 if cache is None else cache.length
        x, seq = embedder(inputs, lengths, segment, past)
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
            x = block(x, seq, None if cache is None else cache.layers[number], memory)
            yield f"block.{number}", x
        if cache is not None:
            cache.length += new
        yield "normed", self.final_norm(x)

    def _with_prefix(self, x: Tensor, seq: Seq, past: int) -> tuple[Tensor, Seq]:
        """The prefix goes before the first token of a stream, and shifts the index of the rest."""
        if self.prefix is not None and past == 0:
            x, seq = self.prefix(x, seq)
        elif self.prefix is not None:
            seq.index = seq.index + self.prefix.num
        if past == 0 and not torch.compiler.is_compiling():
            for mixer in self.mixers:
                mixer.prepare(x, seq)
        return x, seq
