"""Attention pool: a learned query attends to all tokens, and a linear layer predicts from the result.

Source: Lee et al. 2019, Set Transformer (arXiv 1810.00825), section 3.2, PMA with k = 1; Zhai et al. 2022, Scaling
    Vision Transformers (arXiv 2106.04560), section 3.1: the MAP head
Reference: timm layers/attention_pool.py, AttentionPoolLatent
Equation: W (U [softmax(q_h K_h^T / sqrt(K)) V_h]_h + c) + b
Cost: O(N D^2 + D V) time
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Role, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.head._pooled import Pooled, tokens_and_mask
from blockyard.ops.linear import linear
from blockyard.weight_init import Init


class AttentionPool(Pooled):
    """Leaves out padding and prefix tokens. It has as many heads as the model."""

    roles: ClassVar[dict[str, Role]] = {"query": "input"}

    @with_options_of(Pooled)
    def __init__(self, ctx: Context, **options: Any) -> None:
        super().__init__(ctx, **options)
        self.heads = ctx.heads
        self.head_dim = ctx.head_dim
        self.scale = ctx.score_scale(ctx.head_dim)
        self.query = nn.Parameter(torch.empty(ctx.dim))
        self.proj_in = linear(ctx, ctx.dim, 2 * ctx.dim, bias=True)
        self.proj_out = linear(ctx, ctx.dim, ctx.dim, bias=True)

    def init_weights(self, init: Init) -> None:
        """Draw a query with scores near zero, so that pooling starts as a mean."""
        init.normal("query")

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, D). A sequence without tokens reads zero."""
        x, valid = tokens_and_mask(x, seq)
        k, v = self.proj_in(x).unflatten(-1, (2, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)  # (B, H, N, K)
        # The query is trained as it is: a projection of a constant would be another constant.
        q = self.query.view(1, self.heads, 1, self.head_dim).expand(len(x), -1, -1, -1)  # (B, H, 1, K)
        mask = None
        if valid is not None:
            empty = ~valid.any(1, keepdim=True)  # (B, 1): a softmax over nothing is NaN
            mask = (valid | empty)[:, None, None]  # (B, 1, 1, N)
            v = v.masked_fill(empty[:, None, None], 0.0)
        read = F.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)  # (B, H, 1, K)
        return self.proj_out(read.transpose(1, 2).flatten(1))  # (B, D)
