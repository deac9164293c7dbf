"""Vectors of the last few token ids, added to each token: an embedding of n-grams, looked up by a hash.

Source: Roy et al. 2022, N-Grammer (arXiv 2207.06366), section 2; Huang et al. 2025, Over-Tokenized Transformer
    (arXiv 2501.16975), section 3.2; pairs as in modded-nanogpt (github.com/KellerJordan/modded-nanogpt)
Reference: the formula, token by token
Equation: x_t + sum over n of E_n[(sum over k < n of p_k (id_(t-k) + 1)) mod R], with a table E_n of R rows for each n
    and fixed odd numbers p_k; tokens in front of the sequence, of another document, hidden or without an id count as 0
Cost: O(N D) time, R D parameters for each n, one row of them for a token; decoding keeps the ids of n - 1 tokens

    ids      7      2      2      9
    pairs    ( ,7)  (7,2)  (2,2)  (2,9)     --> a row of the table for each; other pairs may share it
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Because, Context, Role, Seq
from blockyard.token_mixer._caches import InputCache
from blockyard.weight_init import Init

Size = Annotated[int, Ge(2), Le(8), Because("longer sequences of ids are nearly all different")]
Rows = Annotated[int, Ge(1), Le(2**24), Because("a table has as many rows")]
ROWS = 8192
# Odd numbers of 31 bits: a sum of eight products with ids fits into 64 bits.
MULTIPLIERS = (
    *(1_640_531_527, 1_779_033_703, 2_017_281_413, 1_359_893_119),
    *(1_521_486_533, 1_103_515_245, 1_812_433_253, 1_597_334_677),
)


class Ngrams(NamedTuple):
    """The options of n-grams.

    sizes: numbers of ids of an n-gram, such as (2, 3)
    rows: rows of the table of each size
    """

    sizes: tuple[Size, ...] = ()
    rows: int = ROWS

    def __bool__(self) -> bool:
        return bool(self.sizes)


NO_NGRAMS = Ngrams()


def checked_ngrams(sizes: tuple[Size, ...], rows: Rows) -> Ngrams:
    """Return both options as one. Raises ValueError for options that have no effect."""
    if rows != ROWS and not sizes:
        raise ValueError(f"model.ngram_rows={rows} has no effect without model.ngrams; use model.ngrams=[2]")
    if len({*sizes}) < len(sizes):
        raise ValueError(f"model.ngrams={list(sizes)}: each size once")
    return Ngrams(sizes, rows)


class NgramEmbedding(nn.Module):
    """Adds the vectors of n-grams. They start at zero, so that the model starts as it is without them."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"table"})
    roles: ClassVar[dict[str, Role]] = {"table": "input"}

    def __init__(self, ctx: Context, ngrams: Ngrams) -> None:
        super().__init__()
        if ctx.tokens.vocabulary is None:
            raise ValueError(
                f"model.ngrams={list(ngrams.sizes)} looks up token ids, and the inputs are none; use model.ngrams=[] "
                "or data of texts"
            )
        self.sizes = ngrams.sizes
        self.rows = ngrams.rows
        self.table = nn.Parameter(torch.empty(len(ngrams.sizes), ngrams.rows, ctx.dim))  # (sizes, R, D)

    def init_weights(self, init: Init) -> None:
        """Set the tables to zero."""
        init.zeros("table")

    def init_cache(self, batch_size: int) -> InputCache:
        """Return an empty cache of the ids of the last tokens."""
        return InputCache(batch_size, max(self.sizes) - 1)

    def forward(self, x: Tensor, seq: Seq, cache: InputCache | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). cache: the ids in front of these tokens."""
        assert seq.ids is not None
        codes = (seq.ids + 1)[..., None]  # (B, N, 1), 0 for a token without an id
        if cache is not None:
            codes, _ = cache.append(codes, seq)  # (B, M, 1)
        rows = self.rows_of(codes[..., 0], seq.segment)[:, :, -x.shape[1] :]  # (sizes, B, N)
        for table, index in zip(self.table, rows, strict=True):
            x = x + F.embedding(index, table).to(x.dtype)
        return x

    def rows_of(self, codes: Tensor, segment: Tensor | None) -> Tensor:
        """Return the rows of each table: codes (B, N), segment (B, N) -> (sizes, B, N)."""
        # The sum of n ids is the sum of n - 1 ids plus one product, so that all sizes cost as much as the largest.
        total = codes * MULTIPLIERS[0]
        sums = {1: total}
        for back in range(1, max(self.sizes)):
            earlier = F.pad(codes, (back, 0))[:, : codes.shape[1]]
            if segment is not None:
                before = F.pad(segment, (back, 0), value=-1)[:, : codes.shape[1]]
                earlier = earlier.masked_fill(before != segment, 0)
            total = total + earlier * MULTIPLIERS[back]
            sums[back + 1] = total
        return torch.stack([sums[size] % self.rows for size in self.sizes])
