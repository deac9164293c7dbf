"""The model of perceiver: learned vectors read the input once, blocks run over them.

inputs --> embedder --(position.embed)--> tokens
                                            |  (cross mixer)
learned latents --> block that reads -------+--> block --> ... --> final norm --> head of the row
                                                                       |
                          tokens --> block that reads <----------------+--> norm --> head of each token
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Memory, Parts, Rate, Seq, TokenMixer
from blockyard.model._compatibility import check_placed
from blockyard.model._example_batch import example
from blockyard.model._positions import place, placing_parts
from blockyard.ops import kernel
from blockyard.weight_init import Init


class Latents(nn.Module):
    """Learned vectors (M, D), the same for every row."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"vectors"})  # as class and register tokens

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(ctx.tokens.max_len, ctx.dim))  # (M, D)

    def init_weights(self, init: Init) -> None:
        """Normal vectors."""
        init.normal("vectors")

    def forward(self, x: Tensor) -> tuple[Tensor, Seq]:
        """The latents for as many rows as x (B, N, D) has: (B, M, D), and their facts: they lie nowhere."""
        index = torch.arange(len(self.vectors), device=x.device)
        row = self.vectors.to(x.dtype).repeat(x.shape[0], 1, 1)  # (B, M, D)
        return row, Seq(index, x.new_zeros((1, len(index), 0)), grid=())


class Perceiving(nn.Module):
    """forward(inputs, lengths) -> (B, V), or (B, N, V) for a head of tokens."""

    def __init__(
        self, ctx: Context, inner: Context, parts: Parts, *, cross: Callable[[Context], TokenMixer], dropout: Rate
    ) -> None:
        super().__init__()
        self.ctx = ctx
        rest = (parts.channel_mixer, parts.norm)
        self.embedder, self.position = placing_parts(ctx, parts)
        self.dropout = nn.Dropout(dropout)
        self.latents = Latents(inner)
        self.input_norm = parts.norm(ctx)  # the blocks normalise what reads, and nobody else what is read
        self.read = parts.block(inner, cross, *rest)
        self.blocks = nn.ModuleList(
            parts.block(inner.at(layer), parts.token_mixer, *rest) for layer in range(ctx.depth)
        )
        self.head = parts.head(ctx)
        by_token = self.head.gives == "token"
        self.write = parts.block(ctx.at(ctx.depth - 1), cross, *rest) if by_token else None
        self.final_norm = parts.norm(ctx) if self.blocks[-1].needs_final_norm else nn.Identity()
        self.last_norm = parts.norm(ctx) if by_token and self.write.needs_final_norm else nn.Identity()
        self.head.tie(self.embedder)
        check_placed(ctx, self.position, "model=perceiver mixes latents, which lie nowhere")
        if ctx.tokens.variable and not self.reading.traits.padding:
            raise ValueError(
                f"model.cross: {type(self.reading).__name__} cannot leave padding out; use data of one length or "
                "another mixer"
            )

    @property
    def reading(self) -> TokenMixer:
        """The mixer that reads the input."""
        return next(m for m in self.read.modules() if isinstance(m, TokenMixer))

    @property
    def mixers(self) -> list[TokenMixer]:
        """The token mixer of each block over the latents, in order."""
        return [next(m for m in block.modules() if isinstance(m, TokenMixer)) for block in self.blocks]

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None) -> Tensor:
        """Predictions for a batch. Raises ValueError for packed rows, which latents would join."""
        prediction = None
        for _, prediction in self._steps(inputs, lengths, segment):  # noqa: B007 - the last one counts
            pass
        return prediction

    def steps(self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None) -> dict[str, Any]:
        """Every intermediate of a forward pass by name, so that a probe needs no hooks.

        embedded (B, N, D - position.width); placed (B, N, D); read, block.0, ... and normed (B, M, D), the
        latents; seq, the facts of the row of tokens; written (B, N, D) for a head of tokens; prediction.
        """
        return dict(self._steps(inputs, lengths, segment))

    def _steps(self, inputs: Tensor, lengths: Tensor | None, segment: Tensor | None) -> Iterator[tuple[str, Any]]:
        if segment is not None:
            raise ValueError(
                "packed rows in model=perceiver: latents would carry one document into another; use one document a row"
            )
        x, seq = self.embedder(inputs, lengths, None, 0)
        if torch.is_autocast_enabled(inputs.device.type if inputs.device.type != "meta" else "cpu"):
            x = x.float()
        yield "embedded", x
        x = self.dropout(place(self.ctx, self.position, x, seq))
        yield "placed", x
        yield "seq", seq
        latents, facts = self.latents(x)
        latents = self.read(latents, facts, None, Memory(self.input_norm(x), seq))
        yield "read", latents
        for mixer in self.mixers:
            mixer.prepare(latents, facts)
        for number, block in enumerate(self.blocks):
            latents = block(latents, facts, None, None)
            yield f"block.{number}", latents
        latents = self.final_norm(latents)
        yield "normed", latents
        if self.write is None:
            yield "prediction", self.head(latents, facts)
            return
        x = self.last_norm(self.write(x, seq, None, Memory(latents, facts)))
        yield "written", x
        yield "prediction", self.head(x, seq)

    def kernels(self, inputs: Tensor | None = None, lengths: Tensor | None = None) -> list[kernel.Record]:
        """Which kernel each layer's mixer takes for this batch, or for a full row of zeros, and why none faster."""
        if inputs is None:
            return kernel.record(self, **example(self.ctx, next(self.parameters()).device))
        return kernel.record(self, inputs, lengths)
