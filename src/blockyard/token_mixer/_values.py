"""Further sources of the values of attention: values of the first layer, and vectors of the token ids.

Source: Zhou et al. 2024, Value Residual Learning (arXiv 2410.17897), section 3; `gated` after x-transformers.
    Vectors of token ids after Jordan et al. 2024, modded-nanogpt (github.com/KellerJordan/modded-nanogpt); in every
    second layer as in Karpathy 2025, nanochat (github.com/karpathy/nanochat)
Reference: x-transformers AttentionLayers(add_value_residual=True, learned_value_residual_mix=...)
Equation: U_l = a_l V_l + b_l E_l[ids], V_l the projection of layer l and E_l a table; U_l = V_l without a table
    mixed    (U_l + U_1) / 2        learned    c_l U_1 + d_l U_l        gated    U_1 + sigmoid(W_l x) (U_l - U_1)
    with numbers a, b, c, d that start at 1/2, and W_l with one output for each head of values
Cost: O(N D) time; the values of the first layer are kept until the last one has read them. A table has as many
    parameters as the embedding of tokens, and a token uses one row of it

    layer 1    x --> V_1 --+-------------> attention
                           |
    layer 2    x --> V_2 --|-->(mix)-----> attention
                           |     ^
                           +-----+
                           |
    layer 3    x --> V_3 --|-->(mix)-----> attention
                           +-----^
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Role, Seq, TokenMixer, Traits
from blockyard.weight_init import Init

ValueResidual = Literal["none", "mixed", "learned"]
GatedValueResidual = Literal["none", "mixed", "learned", "gated"]
ValueEmbedding = Literal["none", "all", "alternate"]

VALUES = "values"  # in `Seq.carry`


class Values(nn.Module):
    """Changes the values of a layer: forward(v, seq, gate) -> (B, H', N, values' width).

    heads, width: shape of the values
    residual, embedding: the options of the mixer
    takes: True if it reads the values of an earlier layer
    gives: True if it is the first layer, which later ones read
    gated: True if `forward` needs a gate
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"table"})
    roles: ClassVar[dict[str, Role]] = {"table": "input", "weights": "fixed", "table_weights": "fixed"}

    def __init__(
        self, ctx: Context, heads: int, width: int, residual: GatedValueResidual, embedding: ValueEmbedding
    ) -> None:
        super().__init__()
        self.residual = residual
        earlier = ctx.given.get(VALUES)
        self.takes = residual != "none" and earlier is not None
        self.gives = residual != "none" and earlier is None
        self.gated = self.takes and residual == "gated"
        if self.takes and earlier != (heads, width):
            raise ValueError(
                f"token_mixer.value_residual={residual}: the values of the first layer have {_shape(earlier)}, and "
                f"those of layer {ctx.layer} {_shape((heads, width))}; use layers whose values are alike"
            )
        self.weights = nn.Parameter(torch.empty(2)) if self.takes and residual == "learned" else None
        self.table: nn.Parameter | None = None
        self.table_weights: nn.Parameter | None = None
        if embeds(ctx, embedding):
            if ctx.tokens.vocabulary is None:
                raise ValueError(
                    f"token_mixer.value_embedding={embedding} looks up token ids, and the inputs are none; use "
                    "token_mixer.value_embedding=none or data of texts"
                )
            self.table = nn.Parameter(torch.empty(ctx.tokens.vocabulary, heads * width))  # (V, H' values)
            self.table_weights = nn.Parameter(torch.empty(2))
        # A looked-up vector starts as large as the projection of a normalised token: D products of init_std.
        self.std = ctx.init_std * ctx.dim**0.5 * (1.0 if ctx.gain is None else ctx.gain)

    def init_weights(self, init: Init) -> None:
        """Set the trained numbers to 1/2, and draw the table from a normal distribution."""
        init.constant("weights", 0.5)
        init.constant("table_weights", 0.5)
        init.normal("table", std=self.std)

    def forward(self, v: Tensor, seq: Seq, gate: Tensor | None = None) -> Tensor:
        """v (B, H', N, W) -> (B, H', N, W). gate: (B, H', N, 1) with the gated residual, else None.

        Raises ValueError if it has a table and the inputs are not token ids.
        """
        if self.table is not None and self.table_weights is not None:
            projected_share, table_share = self.table_weights.to(v.dtype)
            v = projected_share * v + table_share * self._rows(v, seq)
        if self.gives:
            seq.give(VALUES, v)  # U_1: the table of the first layer is in it
        if not self.takes:
            return v
        first = seq.carry[VALUES].to(v.dtype)  # (B, H', N, W)
        if self.weights is not None:
            first_share, layer_share = self.weights.to(v.dtype)
            return first_share * first + layer_share * v
        if gate is None:
            return (first + v) / 2
        return first + gate.sigmoid() * (v - first)

    def _rows(self, v: Tensor, seq: Seq) -> Tensor:
        """Return the rows of the table in the type of v, zero for tokens without an id: (B, H', N, W)."""
        if seq.ids is None:
            raise ValueError("token_mixer.value_embedding looks up token ids, and these inputs have none")
        assert self.table is not None
        rows = nn.functional.embedding(seq.ids.clamp_min(0), self.table)  # (B, N, H' W)
        rows = rows.masked_fill(seq.ids.lt(0)[..., None], 0.0).to(v.dtype)
        return rows.unflatten(-1, (v.shape[1], -1)).transpose(1, 2)  # (B, H', N, W)


def declared(traits: Traits, options: Mapping[str, Any]) -> Traits:
    """Return the traits under `value_residual` and `value_embedding`. A mixer with one of them reads no memory."""
    residual = options.get("value_residual", "none")
    embedding = options.get("value_embedding", "none")
    return replace(
        traits,
        cross=traits.cross and residual == embedding == "none",
        gives=traits.gives if residual == "none" else traits.gives | {VALUES},
        reads_ids=embedding != "none",
    )


def value_sources(
    mixer: TokenMixer, ctx: Context, heads: int, width: int, residual: GatedValueResidual, embedding: ValueEmbedding
) -> Values | None:
    """Return the module that changes the values of a layer, or None. Set in `mixer` the values it gives and takes."""
    if residual == "none" and not embeds(ctx, embedding):
        return None
    values = Values(ctx, heads, width, residual, embedding)
    if values.takes:
        mixer.takes = mixer.takes | {VALUES}
    if values.gives:
        mixer.gives = {**mixer.gives, VALUES: (heads, width)}
        mixer.must_be_taken = mixer.must_be_taken | {VALUES}
    return values


def embeds(ctx: Context, embedding: ValueEmbedding) -> bool:
    """Return whether a layer adds vectors of the token ids. `alternate` counts back from the last layer."""
    return embedding == "all" or (embedding == "alternate" and (ctx.depth - 1 - ctx.layer) % 2 == 0)


def _shape(shape: tuple[int, ...] | None) -> str:
    assert shape is not None
    heads, width = shape
    noun = "head" if heads == 1 else "heads"
    return f"{heads} {noun} of {width} channels"
