"""Encoder-decoder: blocks over a source, and causal blocks that read it through cross-attention.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.1; sharing the table of tokens
    as in its section 3.4
Reference: torch.nn.Transformer
Cost: that of its blocks, and O(N M D) time a layer for cross-attention

    source --> encoder blocks --> memory      a text, or whatever a source_tokenizer reads
                                     |
    target --> [causal mixer --> cross mixer --> channel mixer] x depth --> head
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from blockyard.contracts import Context, DataSpec, Depth, Heads, Parts, Positive, Rate, TokenMixer, TokenSpec, Width
from blockyard.model._sequence_to_sequence import SequenceToSequence
from blockyard.model._stack import CROSS, Stack, crossing


class EncoderDecoder(Stack):
    """Trains with teacher forcing and generates token by token.

    A position scheme acts within each sequence and never between the two: cross-attention has no positions.

    Options:
        depth: blocks of the decoder
        encoder_depth: blocks of the encoder; null is the depth of the decoder
        cross: the mixer that reads the source, in every block of the decoder
        shared: one embedder for source and target; false where they are of different kinds
        dropout: dropout rate on the tokens of either sequence as they enter the first block
    """

    causal: ClassVar[bool] = True
    takes_source: ClassVar[bool] = True
    crosses: ClassVar[bool] = True

    def __init__(
        self,
        *,
        dim: Width = 64,
        depth: Depth = 2,
        encoder_depth: Depth | None = None,
        heads: Heads = 4,
        cross: Callable[[Context], TokenMixer] = CROSS,
        shared: bool = True,
        init_std: Positive | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(dim=dim, depth=depth, heads=heads, init_std=init_std, dropout=dropout)
        self.encoder_depth = encoder_depth or depth
        self.cross, self.shared = crossing(cross), shared

    @classmethod
    def shares(cls, options: dict[str, Any]) -> bool:
        """Whether `shared` is on."""
        return bool(options.get("shared", True))

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Returns the Context of the decoder. Raises ValueError if heads does not divide dim."""
        return replace(super().context(data, tokens, outputs), peer=self.encoder_depth, branches=3)

    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """Returns the model of `ctx`. Raises ValueError if parts contradict each other, or the data has no source."""
        if ctx.data.source is None:
            raise ValueError("model=encoder_decoder reads a source and the data has none; use model=decoder")
        if self.shared and parts.source_embedder is not None:
            raise ValueError("model.shared=true: source and target are of different kinds; use model.shared=false")
        source = replace(
            ctx,
            causal=False,
            depth=self.encoder_depth,
            peer=ctx.depth,
            branches=2,
            tokens=ctx.source_tokens,
            data=ctx.data.source,
            source=None,
        )
        return SequenceToSequence(ctx, source, parts, cross=self.cross, shared=self.shared, dropout=self.dropout)
