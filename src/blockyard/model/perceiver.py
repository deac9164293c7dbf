"""Perceiver: a few learned vectors read the input once, and the blocks run over them alone.

Source: Jaegle et al. 2021, Perceiver (arXiv 2103.03206), figure 1; Jaegle et al. 2022, Perceiver IO (arXiv 2107.14795),
    section 3, for reading once and for one output a token
Reference: transformers PerceiverModel
Cost: O(N M D) time to read N tokens with M latents, then that of its blocks over M tokens, independent of N

    tokens ----------+                          +--- tokens (if the head gives one output a token)
                     v                          v
    latents --> cross mixer --> blocks --> [cross mixer] --> head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import (
    Block,
    Context,
    Inputs,
    Length,
    Memory,
    Model,
    Parts,
    Rate,
    Role,
    Seq,
    TokenMixer,
    TokenSpec,
)
from blockyard.contracts.inherited_options import with_options_of
from blockyard.model._block_stack import BlockStack, first_mixers
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_no_cache, check_no_source, check_only_embeds
from blockyard.model._record import Record, note
from blockyard.model._stack import CROSS, Stack, crossing
from blockyard.weight_init import Init


class Latents(nn.Module):
    """Learned vectors (M, D), the same for every sample."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"vectors"})  # as class and register tokens
    roles: ClassVar[dict[str, Role]] = {"vectors": "input"}

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(ctx.tokens.max_len, ctx.dim))  # (M, D)

    def init_weights(self, init: Init) -> None:
        """Draw normal vectors."""
        init.normal("vectors")

    def forward(self, x: Tensor) -> tuple[Tensor, Seq]:
        """Return the latents for as many samples as x (B, N, D) has, (B, M, D), and their facts: no coordinates."""
        index = torch.arange(len(self.vectors), device=x.device)
        latents = self.vectors.to(x.dtype).repeat(x.shape[0], 1, 1)  # (B, M, D)
        return latents, Seq(index, x.new_zeros((1, len(index), 0)), grid=())


class PerceiverModel(BlockStack):
    """Latents that read the input: forward(inputs, None, record) -> (B, V), or (B, N, V) for a head of tokens."""

    def __init__(
        self, ctx: Context, inner: Context, parts: Parts, *, cross: Callable[[Context], TokenMixer], dropout: Rate
    ) -> None:
        super().__init__(ctx, parts)
        self.dropout = nn.Dropout(dropout)
        self.latents = Latents(inner)
        self.input_norm = parts.norm(ctx)  # a block normalises its own stream, not the memory that it reads
        self.read = parts.block(inner, cross, parts.channel_mixer, parts.norm)
        self.add_blocks(inner, parts)
        self.head = parts.head(ctx)
        self.write: Block | None = None
        if self.head.gives != "sequence":  # tokens read the latents once more
            self.write = parts.block(ctx.at(ctx.depth - 1), cross, parts.channel_mixer, parts.norm)
        self.final_norm = parts.norm(ctx) if self.final_norm_needed else nn.Identity()
        write_norm = self.write is not None and self.write.needs_final_norm
        self.last_norm = parts.norm(ctx) if write_norm else nn.Identity()
        self.head.tie(self.embedder)
        for position, _ in self.placed_mixers():
            check_only_embeds(ctx, position, "model=perceiver mixes latents, which have no coordinates")
        if ctx.tokens.variable and not self.reading.traits.padding:
            raise ValueError(
                f"model.cross: {type(self.reading).__name__} cannot mask padding; use data of one length or "
                "another mixer"
            )

    @property
    def reading(self) -> TokenMixer:
        """The mixer that reads the input."""
        return first_mixers(nn.ModuleList([self.read]))[0]

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions for a batch. Raises ValueError for packed sequences: latents would join documents."""
        inputs = Inputs.of(inputs, cache)
        check_no_source(self, inputs)
        check_no_cache(self, cache)
        if inputs.segment is not None:
            raise ValueError(
                "packed sequences in model=perceiver: latents would carry one document into another; use one document "
                "a sequence"
            )
        x, seq = self.embed_tokens(inputs, record)  # (B, N, D)
        # The stream of the latents and the tokens enter at the same size.
        factor = self.ctx.parametrization.factor("embedding", self.ctx)
        x = self.dropout(x if factor == 1.0 else x * factor)
        note(record, "seq", seq)
        latents, latent_seq = self.latents(x)  # (B, M, D)
        latents = latents if factor == 1.0 else latents * factor
        latent_seq.scale = seq.scale  # a head of one output a sequence predicts in the units of the inputs
        latents = self.read(latents, latent_seq, None, Memory(self.input_norm(x), seq))
        note(record, "read", latents)
        latents = self.final_norm(self.through_blocks(latents, latent_seq, None, None, record))
        note(record, "normed", latents)
        if self.write is None:
            prediction = self.head(latents, latent_seq)  # (B, V)
        else:
            x = self.last_norm(self.write(x, seq, None, Memory(latents, latent_seq)))  # (B, N, D)
            note(record, "written", x)
            prediction = self.head(x, seq)  # (B, N, V)
        note(record, "prediction", prediction)
        return prediction


class Perceiver(Stack):
    """The cost of the blocks does not depend on the length of the input.

    Latents have no coordinates: positions are added to the tokens of the input before they are read.

    Options:
        depth: blocks over the latents
        num_latents: learned vectors (M)
        cross: the mixer by which latents read tokens, and tokens read latents
        dropout: dropout rate on the tokens before they are read
    """

    causal: ClassVar[bool] = False
    latents: ClassVar[bool] = True

    @with_options_of(Stack, only=("dim", "depth", "order", "heads", "init_std", "dropout"))
    def __init__(
        self, *, num_latents: Length = 16, cross: Callable[[Context], TokenMixer] = CROSS, **options: Any
    ) -> None:
        super().__init__(**options)
        self.num_latents = num_latents
        self.cross = crossing(cross)

    def mixer_context(self, ctx: Context) -> Context:
        """Return the Context of the latents: the same number for every sample, without coordinates."""
        data = replace(ctx.data, variable=False)
        return replace(ctx, tokens=TokenSpec((), count=self.num_latents), data=data)

    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model of `ctx`. Raises ValueError if its parts contradict each other."""
        return PerceiverModel(ctx, self.mixer_context(ctx), parts, cross=self.cross, dropout=self.dropout)
