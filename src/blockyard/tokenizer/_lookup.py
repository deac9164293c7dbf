"""Shared parts of tokenizers that produce token ids: the embedding table, and the facts of a sequence of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec

if TYPE_CHECKING:
    import tokenizers

UNKNOWN = 0  # the token id of texts that the training split does not contain
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # its text

Scale = Literal["one", "sqrt_dim"]


@dataclass(kw_only=True, eq=False)
class LookupTokenizer:
    """Mixin of tokenizers that produce token ids, embedded by table lookup.

    Options:
        scale: factor on the embeddings as they enter the residual stream: one, or sqrt_dim, the square root of
            their width (Vaswani et al. 2017, section 3.4); a tied head uses them unscaled
    """

    scale: Scale = "one"

    def embedder(self, ctx: Context) -> TokenEmbedder:
        """Build the embedding table."""
        return TokenEmbedder(ctx)


def text_tokens(data: DataSpec, vocabulary: int, scale: Scale = "one") -> TokenSpec:
    """Return the tokens of a text, with one axis. Raises ValueError for other data.

    If a model writes the text from a source, or behind it in one sequence, a start and an end token are added to the
    vocabulary.
    """
    if data.modality != "text":
        raise ValueError(f"this tokenizer reads text, the data gives {data.things}")
    tokens = TokenSpec(data.shape, variable=data.variable, vocabulary=vocabulary, scaled=scale == "sqrt_dim")
    if not data.joined and (data.source is None or data.target is not None):
        return tokens
    return replace(tokens, vocabulary=vocabulary + 2, start=vocabulary, end=vocabulary + 1)


def closed_vocabulary(texts: Sequence[str], pattern: str) -> tokenizers.Tokenizer:
    """Return a tokenizer of the library that looks the matches of a pattern up in a table.

    texts: the texts of token ids from 1 on; all others are `UNKNOWN`, decoded to `REPLACEMENT`
    pattern: a pattern of Oniguruma; its matches concatenate to any text, and none of them is "<unk>"
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    unknown = "<unk>"
    vocabulary = {unknown: UNKNOWN} | {text: token_id for token_id, text in enumerate(texts, start=1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(unknown, REPLACEMENT), decoders.Fuse()])
    return tokenizer


class TokenEmbedder(Embedder):
    """Looks token ids up in a (V, D) table."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        assert ctx.tokens.vocabulary is not None
        self.symbols = nn.Embedding(ctx.tokens.vocabulary, ctx.dim)
        self.scale = ctx.token_scale

    @property
    def table(self) -> nn.Parameter:  # type: ignore[override]
        """The (V, D) embeddings, shared by a tied head."""
        return cast(nn.Parameter, self.symbols.weight)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Token ids (B, N) -> x (B, N, D), Seq. Coordinates count from 0 in each segment."""
        index = torch.arange(start, start + inputs.shape[1], device=inputs.device)
        valid = None if lengths is None else index < lengths[:, None]  # (B, N)
        position = index[None] if segment is None else _offset_in_segment(segment)
        coords = position[..., None].float()  # (B|1, N, 1)
        x = self.symbols(inputs)  # (B, N, D)
        ids = inputs
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)
            ids = ids.masked_fill(~valid, -1)
        if self.scale != 1:
            x = x * self.scale
        return x, Seq(index, coords, valid, segment, grid=(inputs.shape[1],), ids=ids)


def _offset_in_segment(segment: Tensor) -> Tensor:
    """Return the distance of each token from the first of its segment: (B, N) -> (B, N)."""
    index = torch.arange(segment.shape[1], device=segment.device).expand_as(segment)
    first = torch.ones_like(segment, dtype=torch.bool)
    first[:, 1:] = segment[:, 1:] != segment[:, :-1]
    return index - index.masked_fill(~first, 0).cummax(1).values
