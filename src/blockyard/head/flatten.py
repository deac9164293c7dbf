"""Flatten: a linear layer on all tokens side by side.

Source: Nie et al. 2023, A Time Series is Worth 64 Words (PatchTST, arXiv 2211.14730), section 3.1: flatten layer
    with linear head
Reference: transformers PatchTSTPredictionHead
Equation: W [x_1; ...; x_N] + b
Cost: O(N D V) time and parameters
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from blockyard.contracts import Context, Seq
from blockyard.head._pooled import Pooled, tokens_and_mask


class Flatten(Pooled):
    """Every token has its own weights, so that sequences must all be of one length. Leaves out prefix tokens."""

    fixed_length: ClassVar[bool] = True

    def pooled_width(self, ctx: Context) -> int:
        """Return the number of channels of all tokens. Raises ValueError for sequences of different lengths."""
        if ctx.tokens.variable:
            raise ValueError("head=flatten needs sequences of one length; use head=mean_pool")
        return ctx.tokens.max_len * ctx.dim

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, N D). Raises ValueError for padding or another number of tokens."""
        x, valid = tokens_and_mask(x, seq)
        tokens = self.features // x.shape[2]
        if valid is not None or x.shape[1] != tokens:
            problem = "padded sequences" if valid is not None else f"{x.shape[1]} tokens"
            raise ValueError(f"head=flatten has weights for exactly {tokens} tokens and gets {problem}")
        return x.flatten(1)  # (B, N D)
