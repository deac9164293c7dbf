"""Reconstruct: every token is predicted from the vector of the last one and a code of its position.

Source: Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures (MAD, arXiv 2403.17844), section 3.1,
    the decoder of the compression task
Reference: the formula, in the tests; there the code is a fixed sinusoid
Equation: z_n = W f(U (x_N + p_n) + b), with a trained code p_n of each position and f the GELU
Cost: O(N D E + N E V) time with E hidden channels

    x_0  x_1  ...  x_N --+-- + p_0 --> MLP --> z_0
                         +-- + p_1 --> MLP --> z_1
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Expansion, Head, Role, Seq
from blockyard.head._pooled import rescale_tokens
from blockyard.ops.linear import linear, output
from blockyard.weight_init import Init


class Reconstruct(Head):
    """For sequences of one length. The last token has to know all others.

    Options:
        expansion: hidden width as a multiple of model.dim
    """

    gives: ClassVar[str] = "token"
    fixed_length: ClassVar[bool] = True
    reads_last: ClassVar[bool] = True
    roles: ClassVar[dict[str, Role]] = {"codes": "input"}
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"codes"})

    def __init__(self, ctx: Context, *, expansion: Expansion = 2.0) -> None:
        super().__init__()
        if ctx.tokens.variable or ctx.data.packed:
            raise ValueError(
                "head=reconstruct predicts all tokens from the last one: it needs sequences of one length and one "
                "document; use head=token"
            )
        self.rescaled = ctx.tokens.rescaled
        self.std = ctx.input_std
        hidden = max(1, round(expansion * ctx.dim))
        self.codes = nn.Parameter(torch.empty(ctx.tokens.max_len, ctx.dim))  # (N, D)
        self.hidden = linear(ctx, ctx.dim, hidden, bias=True)
        self.proj = output(ctx, hidden, ctx.outputs, place="logits")

    def init_weights(self, init: Init) -> None:
        """Draw normal codes, as large as tokens that enter the stream."""
        init.normal("codes", std=self.std)

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, p + N, D) -> (B, N, V). Raises ValueError for another number of tokens."""
        count = x.shape[1] - seq.num_prefix
        if count != len(self.codes) or seq.valid is not None:
            raise ValueError(f"head=reconstruct has codes of {len(self.codes)} positions, and the sequence has {count}")
        queries = x[:, -1:] + self.codes.to(x.dtype)  # (B, N, D)
        prediction: Tensor = self.proj(F.gelu(self.hidden(queries)))  # (B, N, V)
        if self.rescaled:
            return rescale_tokens(prediction, seq)
        return prediction
