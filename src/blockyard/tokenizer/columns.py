"""The columns of a table of numbers as tokens.

Source: Gorishniy et al. 2021, Revisiting Deep Learning Models for Tabular Data (FT-Transformer, arXiv 2106.11959),
    section 3.3, the feature tokenizer for numbers
Reference: yandex-research/rtdl-revisiting-models, LinearEmbeddings
Equation: x_c = v_c w_c + b_c, w_c and b_c learned vectors of column c
Cost: O(C D) time for C columns

A missing value is the mean of its column, zero after standardizing: its token is b_c.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Embedder, Role, Seq, Tokenizer, TokenSpec
from blockyard.weight_init import Init


class Columns(Tokenizer):
    """One token per column, without an order. The vector b_c identifies the column."""

    modality = "vector"
    axes = 0

    def __init__(self) -> None:
        pass

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return a set of one token per column. Raises ValueError for other data."""
        if data.modality != "vector":
            raise ValueError(f"this tokenizer reads vectors of numbers, the data gives {data.things}")
        return TokenSpec((), count=data.shape[0])

    def embedder(self, ctx: Context) -> ColumnEmbedder:
        """Build the vectors of the columns."""
        return ColumnEmbedder(ctx)


class ColumnEmbedder(Embedder):
    """Numbers to tokens, with two vectors for each column: forward(inputs) -> x (B, C, D), Seq."""

    # Not maps but vectors, one for each column, although they are stored together.
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})
    roles: ClassVar[dict[str, Role]] = {"weight": "input", "bias": "input"}

    index: Tensor
    coords: Tensor

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.std = ctx.input_std
        self.columns = ctx.tokens.max_len
        self.weight = nn.Parameter(torch.empty(self.columns, ctx.dim))
        self.bias = nn.Parameter(torch.empty(self.columns, ctx.dim))
        self.register_buffer("index", torch.arange(self.columns), persistent=False)
        self.register_buffer("coords", torch.zeros(1, self.columns, 0), persistent=False)

    def init_weights(self, init: Init) -> None:
        """Draw normal vectors, as large as others that enter the stream."""
        init.normal("weight", self.std)
        init.normal("bias", self.std)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Numbers (B, C), NaN for missing ones -> x (B, C, D), Seq. Raises ValueError for another shape."""
        if lengths is not None or segment is not None or start:
            raise ValueError("a vector is one full set of tokens; omit lengths, segment and cache")
        if inputs.ndim != 2 or inputs.shape[1] != self.columns:
            raise ValueError(f"inputs of shape {tuple(inputs.shape)}: this model reads vectors (batch, {self.columns})")
        x = inputs.nan_to_num()[..., None] * self.weight + self.bias  # (B, C, D)
        return x, Seq(self.index, self.coords)
