"""A tower over the tokens of one sequence, and the model of encoder and decoder: a tower and a head.

inputs --> embedder --(position.embed)--> [prefix | tokens] --> block --> ... --> final norm --> head
               |                                                  ^   ^
               |                                                  |   +---- memory: another sequence, if there is one
               +---- Seq: index, coords, valid, segment ----------+---- position.rotate, position.bias
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn

from blockyard.contracts import Block, Context, Embedder, Inputs, Memory, Parts, Rate, Seq, TokenMixer
from blockyard.contracts.inherited_options import with_options_of
from blockyard.model._backout import Backout
from blockyard.model._block_stack import BlockStack
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_call, check_no_source, check_parts
from blockyard.model._embedding import check_key_widths
from blockyard.model._ngrams import NO_NGRAMS, NgramEmbedding, Ngrams
from blockyard.model._prefix import Prefix, PrefixTokens
from blockyard.model._record import Record, note
from blockyard.model._smear import Smear
from blockyard.model._unit_weights import UnitWeights, check_unit_weights
from blockyard.ops.ring import shared

Sees = Literal["past", "source"]


class Tower(BlockStack):
    """Embedder, position scheme, prefix, blocks and final norm of one sequence of tokens.

    embedder: the embedder of another tower, to be shared; it stays a part of that tower
    cross: the factory of a cross-attention mixer; every block then has a further branch that reads a memory
    ngrams: the n-grams of token ids with vectors that are added to each token
    embed_norm: put a norm in front of the blocks, over tokens with their added positions and prefix
    smear: add a gated share of the token before to each token
    backout: number of visits of blocks after which the stream is kept, to be subtracted in part at the end
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
        ngrams: Ngrams = NO_NGRAMS,
        embed_norm: bool = False,
        smear: bool = False,
        backout: int | None = None,
    ) -> None:
        super().__init__(ctx, parts, embedder=embedder)
        self.ngrams = NgramEmbedding(ctx, ngrams) if ngrams else None
        self.smear = Smear(ctx) if smear else None
        self.prefix_options = prefix
        self.embed_norm = parts.norm(ctx) if embed_norm else None
        self.dropout = nn.Dropout(dropout)
        self.prefix = PrefixTokens(ctx, prefix) if prefix else None
        blocks = self.add_blocks(ctx, parts)
        self.backout = None if backout is None else Backout(ctx, backout)
        for position, mixers in self.placed_mixers():
            check_key_widths(ctx, position, mixers)
        if cross is not None:
            for layer, (kind, block) in enumerate(zip(self.kinds, blocks, strict=True)):
                block.add_cross(ctx.at(layer), cross, parts.of_kind(kind).norm)
        self.final_norm = parts.norm(ctx) if self.final_norm_needed else nn.Identity()

    def forward_features(
        self,
        inputs: Inputs,
        cache: Cache | None = None,
        record: Record | None = None,
        *,
        memory: Memory | None = None,
        embedder: Embedder | None = None,
    ) -> tuple[Tensor, Seq]:
        """Return the stream after the final norm (B, prefix + N, D), the input of a head, and its facts."""
        check_call(self.ctx, self.prefix_options, inputs, cache is not None)
        past = 0 if cache is None else cache.length
        x, seq = self.embed_tokens(inputs, record, start=past, embedder=embedder)  # (B, N, D)
        new = len(seq)
        if self.ngrams is not None:
            x = self.ngrams(x, seq, None if cache is None else cache.layers[len(self.order)])
        if self.smear is not None:
            x = self.smear(x, seq, None if cache is None else cache.layers[-1])
        x, seq = self._add_prefix(x, seq, past)  # (B, prefix + N, D)
        if self.training:
            x, seq = shared(x, seq)  # this process's part, if processes share a sequence
        x = self.mixed(x, seq, cache, memory, record)
        if cache is not None:
            cache.length = past + new
        return x, seq

    def mixed(self, x: Tensor, seq: Seq, cache: Cache | None, memory: Memory | None, record: Record | None) -> Tensor:
        """Run a stream (B, prefix + N, D) through the blocks and the final norm."""
        note(record, "seq", seq)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        factor = self.ctx.parametrization.factor("embedding", self.ctx)
        x = self.dropout(x if factor == 1.0 else x * factor)
        note(record, "stream", x)
        x = self.final_norm(self.through_blocks(x, seq, cache, memory, record))
        note(record, "normed", x)
        return x

    def init_cache(self, batch_size: int) -> Cache:
        """Return the cache of `BlockStack.init_cache` with the caches of n-grams and smear behind the layers."""
        cache = super().init_cache(batch_size)
        if self.ngrams is not None:
            cache.layers.append(self.ngrams.init_cache(batch_size))
        if self.smear is not None:
            cache.layers.append(self.smear.init_cache(batch_size))
        return cache

    @property
    def kept_visit(self) -> int | None:
        """The index of the visit that `backout` keeps, or None."""
        if self.backout is None:
            return None
        return self.backout.after - 1

    def backed_out(self, x: Tensor, middle: Tensor | None) -> Tensor:
        """Return the stream after the blocks (B, N, D), less the part of `middle` that `backout` takes out."""
        if self.backout is None:
            return x
        assert middle is not None
        return self.backout(x, middle)

    def _add_prefix(self, x: Tensor, seq: Seq, past: int) -> tuple[Tensor, Seq]:
        """Put the prefix in front of the first token of a stream, and shift the index of all tokens behind it."""
        if self.prefix is None:
            return x, seq
        if past == 0:
            return self.prefix(x, seq)
        seq.index = seq.index + self.prefix.num
        return x, seq


class Transformer(Tower):
    """Blocks over tokens: forward(inputs, cache, record) -> (B, V) or (B, N, V).

    unit_weights: keep the matrices at unit length
    sees: "source" lets the tokens in front of the start token see each other, in a sequence with a source
    """

    @with_options_of(Tower, without=("embedder", "cross"))
    def __init__(
        self, ctx: Context, parts: Parts, *, unit_weights: bool = False, sees: Sees = "past", **options: Any
    ) -> None:
        super().__init__(ctx, parts, **options)
        self.sees = sees
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        if self.head.has_blocks:
            last = parts.of_kind(self.kinds[-1])

            def block(ctx: Context) -> Block:
                return last.block(ctx, last.token_mixer, last.channel_mixer, last.norm)

            self.head.add_blocks(ctx, block, last.norm, self.position_of(ctx.depth - 1))
        check_parts(ctx, self.prefix_options, self.placed_mixers(), self.head)
        if unit_weights:
            check_unit_weights(ctx)
            self.unit_weights = UnitWeights(self)  # the last part: what it normalises is initialised before it

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions (B, V) or (B, N, V) for a batch. With a cache, `inputs` are the new tokens only."""
        inputs = Inputs.of(inputs, cache)
        check_no_source(self, inputs)
        x, seq = self.forward_features(inputs, cache, record)
        prediction = self.head(x, seq)
        note(record, "prediction", prediction)
        return prediction

    def embed_tokens(
        self, inputs: Inputs, record: Record | None = None, *, start: int = 0, embedder: Embedder | None = None
    ) -> tuple[Tensor, Seq]:
        """Embed as `Embeds.embed_tokens` does. In a model that sees the source, the facts also mark its tokens.

        Raises ValueError for a source that comes in several calls: its first tokens could not see the last ones.
        """
        x, seq = super().embed_tokens(inputs, record, start=start, embedder=embedder)
        if self.sees == "source":
            assert self.ctx.tokens.start is not None
            starts = inputs.inputs.eq(self.ctx.tokens.start)  # (B, N)
            if start == 0:
                seq.shown = starts.cumsum(-1) == 0  # (B, N), True in front of the start token
            elif bool(starts.any()):
                raise ValueError("model.sees=source reads a whole source in the first call; it came in several")
        return x, seq
