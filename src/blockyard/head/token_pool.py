"""Token pool: one trained matrix maps all tokens to another number of tokens, side by side in a linear layer.

Source: Rosenblatt 1958, for layers in which everything is connected; Melas-Kyriazi 2021, Do You Even Need Attention?
    (arXiv 2105.02723), for such a layer over tokens
Reference: torch.nn.Linear over the transposed sequence; torch.einsum
Equation: y_i = sum_j P_ij x_j + b_i, P in R^(N2 x N1), b_i a number; then W [y_1; ...; y_N2] + c
Cost: O(N1 N2 D + N2 D V) time, N1 N2 + N2 D V parameters

    x_1 .. x_N1 --P--> y_1 .. y_N2 --> [y_1; ...; y_N2] --W--> prediction

With one output token it is a trained weighted mean. head=flatten keeps all tokens.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Count, Role, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.head._pooled import Pooled, tokens_and_mask
from blockyard.weight_init import Init


class TokenPool(Pooled):
    """Weights belong to token indices, so that sequences must all be of one length. Leaves out prefix tokens.

    Options:
        tokens_out: number of tokens behind the matrix, fewer or more than before
        token_bias: add a trained number to each of these tokens
    """

    fixed_length: ClassVar[bool] = True
    bidirectional: ClassVar[bool] = True
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"token_bias"})
    roles: ClassVar[dict[str, Role]] = {"weight": "fixed", "token_bias": "fixed"}

    @with_options_of(Pooled)
    def __init__(self, ctx: Context, *, tokens_out: Count = 4, token_bias: bool = True, **options: Any) -> None:
        if ctx.tokens.variable:
            raise ValueError("head=token_pool needs sequences of one length; use head=mean_pool")
        if ctx.causal:
            raise ValueError(
                "head=token_pool mixes all tokens of a bidirectional model; in a causal one the last token has read "
                "the others: head=last"
            )
        self.tokens_out = tokens_out  # read by `pooled_width`
        super().__init__(ctx, **options)
        self.length = ctx.tokens.max_len
        self.weight = nn.Parameter(torch.empty(tokens_out, self.length))  # to, from
        self.token_bias = nn.Parameter(torch.empty(tokens_out, 1)) if token_bias else None

    def pooled_width(self, ctx: Context) -> int:
        """Return the number of channels of all tokens behind the matrix."""
        return self.tokens_out * ctx.dim

    def init_weights(self, init: Init) -> None:
        """Draw weights so that unit inputs give tokens of unit size; zero bias."""
        init.normal("weight", std=1 / math.sqrt(self.length))
        init.zeros("token_bias")

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N1, D) -> (B, N2 D). Raises ValueError for padding or another number of tokens."""
        x, valid = tokens_and_mask(x, seq)
        if valid is not None or x.shape[1] != self.length:
            problem = "padded sequences" if valid is not None else f"{x.shape[1]} tokens"
            raise ValueError(f"head=token_pool has weights for exactly {self.length} tokens and gets {problem}")
        pooled = self.weight @ x  # (B, N2, D)
        if self.token_bias is not None:
            pooled = pooled + self.token_bias
        return pooled.flatten(1)  # (B, N2 D)
