"""What text tokenizers share: a table of vectors, and the facts of a row of symbols."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec

UNKNOWN = 0  # the symbol of whatever the training part did not hold
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what that symbol reads as

Scale = Literal["one", "sqrt_dim"]


class Tabled:
    """Mixed into tokenizers whose tokens are symbols.

    Options:
        scale: what the vectors of symbols are multiplied by as they enter the stream: one, or sqrt_dim, the root
            of their width (Vaswani et al. 2017, section 3.4); a tied head has them as they are
    """

    scale: Scale = "one"

    def embedder(self, ctx: Context) -> SymbolEmbedder:
        """A table of vectors."""
        return SymbolEmbedder(ctx)


def text_tokens(data: DataSpec, vocabulary: int, scale: Scale = "one") -> TokenSpec:
    """The tokens of a text: one axis. Raises ValueError where the data is none.

    Where it has a source, rows are written from a start to an end symbol, two more than the vocabulary.
    """
    if data.modality != "text":
        raise ValueError(f"this tokenizer reads text, the data gives {data.things}")
    tokens = TokenSpec(data.shape, variable=data.variable, vocabulary=vocabulary, scaled=scale == "sqrt_dim")
    if data.source is None:
        return tokens
    return replace(tokens, vocabulary=vocabulary + 2, start=vocabulary, end=vocabulary + 1)


class SymbolEmbedder(Embedder):
    """Looks symbols up in a (V, D) table."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        assert ctx.tokens.vocabulary is not None
        self.symbols = nn.Embedding(ctx.tokens.vocabulary, ctx.dim)
        self.scale = ctx.dim**0.5 if ctx.tokens.scaled else 1.0

    @property
    def table(self) -> nn.Parameter:  # type: ignore[override]
        """The (V, D) vectors, shared by a tied head."""
        return self.symbols.weight

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Symbols (B, N) -> x (B, N, D), Seq; coordinates count from 0 in each segment."""
        index = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        valid = None if lengths is None else index < lengths[:, None]  # (B, N)
        place = index[None] if segment is None else _since_start(segment)
        coords = place[..., None].float()  # (B|1, N, 1)
        x = self.symbols(inputs)  # (B, N, D)
        return x if self.scale == 1 else x * self.scale, Seq(index, coords, valid, segment, grid=(inputs.shape[1],))


def _since_start(segment: Tensor) -> Tensor:
    """How far each token is from the first of its segment: (B, N) -> (B, N)."""
    index = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    first = torch.ones_like(segment, dtype=torch.bool)
    first[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return index - index.masked_fill(~first, 0).cummax(1).values
