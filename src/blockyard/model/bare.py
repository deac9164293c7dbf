"""Bare: no blocks; the tokens go straight to the head. With tokenizer=timm this is a plain CNN.

Source: He et al. 2016, Deep Residual Learning (arXiv 1512.03385), for the CNN that tokenizer=timm makes of it
Reference: timm.create_model
Cost: that of the tokenizer's network
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from blockyard.contracts import (
    Architecture,
    Context,
    DataSpec,
    Inputs,
    Model,
    Parts,
    Positive,
    Rate,
    TokenMixer,
    TokenSpec,
    Width,
)
from blockyard.model._cache import Cache
from blockyard.model._compatibility import check_no_cache, check_no_source, check_only_embeds
from blockyard.model._embedding import Embeds
from blockyard.model._record import Record, note


class Bare(Embeds):
    """An embedder and a head: forward(inputs, None, record) -> (B, V) or (B, N, V)."""

    def __init__(self, ctx: Context, parts: Parts, *, dropout: Rate) -> None:
        super().__init__(ctx, parts)
        self.dropout = nn.Dropout(dropout)
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_only_embeds(ctx, self.position, "model=bare mixes no tokens")

    @property
    def mixers(self) -> list[TokenMixer]:
        """Empty: the model has no blocks."""
        return []

    def forward(self, inputs: Inputs | Tensor, cache: Cache | None = None, record: Record | None = None) -> Tensor:
        """Return the predictions for a batch."""
        inputs = Inputs.of(inputs, cache)
        check_no_source(self, inputs)
        check_no_cache(self, cache)
        x, seq = self.embed_tokens(inputs, record)  # (B, N, D)
        note(record, "seq", seq)
        prediction = self.head(self.dropout(x), seq)
        note(record, "prediction", prediction)
        return prediction


class BareModel(Architecture):
    """The baseline for models with blocks. The parts of a block are all `none`, so that no option is ignored.

    Options:
        dim: channels of a token (D)
        init_std: standard deviation of the head's initial weights; null is 1 / sqrt(D)
        dropout: dropout rate on the tokens
    """

    causal: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __init__(self, *, dim: Width = 64, init_std: Positive | None = None, dropout: Rate = 0.0) -> None:
        self.dim = dim
        self.init_std = init_std
        self.dropout = dropout

    def context(self, data: DataSpec, tokens: TokenSpec, outputs: int) -> Context:
        """Return the Context of the tokenizer and the head."""
        return Context(
            dim=self.dim,
            depth=1,
            heads=1,
            causal=False,
            tokens=tokens,
            data=data,
            outputs=outputs,
            init_std=self.init_std or self.dim**-0.5,
        )

    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model of `ctx`. Raises ValueError if its parts contradict each other."""
        return Bare(ctx, parts, dropout=self.dropout)
