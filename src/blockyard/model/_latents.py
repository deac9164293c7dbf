"""The model of perceiver: learned vectors read the input once, and blocks run over them.

inputs --> embedder --(position.embed)--> tokens
                                            |  (cross mixer)
learned latents --> block that reads -------+--> block --> ... --> final norm --> head of the sequence
                                                                       |
                          tokens --> block that reads <----------------+--> norm --> head of each token
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Memory, Parts, Rate, Seq, TokenMixer
from blockyard.model._compatibility import check_only_embeds
from blockyard.model._example_batch import record_kernels
from blockyard.model._mask_token import hide, mask_token
from blockyard.model._positions import add_position, embedder_and_position, set_pairs
from blockyard.model._record import Record, note
from blockyard.model._tower import first_mixers
from blockyard.ops import kernel
from blockyard.ops.full_precision import as_stream
from blockyard.weight_init import Init


class Latents(nn.Module):
    """Learned vectors (M, D), the same for every sample."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"vectors"})  # as class and register tokens

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(ctx.tokens.max_len, ctx.dim))  # (M, D)

    def init_weights(self, init: Init) -> None:
        """Normal vectors."""
        init.normal("vectors")

    def forward(self, x: Tensor) -> tuple[Tensor, Seq]:
        """Returns the latents for as many samples as x (B, N, D) has, (B, M, D), and their facts: no coordinates."""
        index = torch.arange(len(self.vectors), device=x.device)
        latents = self.vectors.to(x.dtype).repeat(x.shape[0], 1, 1)  # (B, M, D)
        return latents, Seq(index, x.new_zeros((1, len(index), 0)), grid=())


class PerceiverModel(nn.Module):
    """Latents that read the input: forward(inputs, lengths) -> (B, V), or (B, N, V) for a head of tokens."""

    def __init__(
        self, ctx: Context, inner: Context, parts: Parts, *, cross: Callable[[Context], TokenMixer], dropout: Rate
    ) -> None:
        super().__init__()
        self.ctx = ctx
        rest = (parts.channel_mixer, parts.norm)
        self.embedder, self.position = embedder_and_position(ctx, parts)
        self.mask_token = mask_token(ctx, self.position.width)
        self.dropout = nn.Dropout(dropout)
        self.latents = Latents(inner)
        self.input_norm = parts.norm(ctx)  # a block normalises its own stream, not the memory that it reads
        self.read = parts.block(inner, cross, *rest)
        blocks = [parts.block(inner.at(layer), parts.token_mixer, *rest) for layer in range(ctx.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.head = parts.head(ctx)
        self.write = parts.block(ctx.at(ctx.depth - 1), cross, *rest) if self.head.gives != "sequence" else None
        self.final_norm = parts.norm(ctx) if blocks[-1].needs_final_norm else nn.Identity()
        write_norm = self.write is not None and self.write.needs_final_norm
        self.last_norm = parts.norm(ctx) if write_norm else nn.Identity()
        self.head.tie(self.embedder)
        check_only_embeds(ctx, self.position, "model=perceiver mixes latents, which have no coordinates")
        if ctx.tokens.variable and not self.reading.traits.padding:
            raise ValueError(
                f"model.cross: {type(self.reading).__name__} cannot mask padding; use data of one length or "
                "another mixer"
            )

    @property
    def reading(self) -> TokenMixer:
        """The mixer that reads the input."""
        return first_mixers(nn.ModuleList([self.read]))[0]

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block over the latents, in order; a block without one is left out."""
        return first_mixers(self.blocks)

    def forward(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        record: Record | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor:
        """Returns the predictions for a batch. Raises ValueError for packed sequences, whose documents latents join."""
        if segment is not None:
            raise ValueError(
                "packed sequences in model=perceiver: latents would carry one document into another; use one document "
                "a sequence"
            )
        x, seq = self.embedder(inputs, lengths, None, 0)  # (B, N, D - position.width)
        set_pairs(seq, pairs)
        x = hide(self.mask_token, as_stream(x), seq, hidden)
        note(record, "embedded", x)
        x = self.dropout(add_position(self.ctx, self.position, x, seq))  # (B, N, D)
        note(record, "placed", x)
        note(record, "seq", seq)
        latents, latent_seq = self.latents(x)  # (B, M, D)
        latent_seq.scale = seq.scale
        latents = self.read(latents, latent_seq, None, Memory(self.input_norm(x), seq))
        note(record, "read", latents)
        if not torch.compiler.is_compiling():
            for mixer in self.mixers:
                mixer.prepare(latents, latent_seq)
        for layer, block in enumerate(self.blocks):
            latents = block(latents, latent_seq, None, None)
            note(record, f"block.{layer}", latents)
        latents = self.final_norm(latents)
        note(record, "normed", latents)
        if self.write is None:
            prediction = self.head(latents, latent_seq)  # (B, V)
        else:
            x = self.last_norm(self.write(x, seq, None, Memory(latents, latent_seq)))  # (B, N, D)
            note(record, "written", x)
            prediction = self.head(x, seq)  # (B, N, V)
        note(record, "prediction", prediction)
        return prediction

    def steps(
        self,
        inputs: Tensor,
        lengths: Tensor | None = None,
        segment: Tensor | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Record:
        """Returns every intermediate of a forward pass by name, so that a probe needs no hooks.

        embedded (B, N, D - position.width); placed (B, N, D); seq, the facts of the tokens; read, block.0, ... and
        normed (B, M, D), the latents; written (B, N, D) for a head of tokens; prediction.
        """
        record: Record = {}
        self.forward(inputs, lengths, segment, record, hidden, pairs)
        return record

    def kernels(
        self,
        inputs: Tensor | None = None,
        lengths: Tensor | None = None,
        hidden: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> list[kernel.Record]:
        """Returns the kernel each mixer takes for this batch, or for full sequences of zeros, and why none faster."""
        return record_kernels(self, inputs, lengths=lengths, hidden=hidden, pairs=pairs)
