"""Encoder: blocks that look both ways over a full row.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762); Dosovitskiy et al. 2021 (arXiv 2010.11929)
Reference: timm models/vision_transformer.py; transformers BertModel
Cost: that of its blocks, depth times
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.contracts import Count, Positive, Rate
from blockyard.model._plan import Stack
from blockyard.model._prefix import NO_PREFIX, Prefix


class Encoder(Stack):
    """Every token may see every other.

    Options:
        dim: channels of a token (D)
        depth: blocks
        heads: heads of attention (H); must divide dim
        prefix: class_token, and a number of registers, learned tokens in front of every row
        init_std: spread of initial weights, null means 1 / sqrt(D); what writes into the stream starts
            sqrt(2 depth) smaller
        dropout: rate on the tokens as they enter the first block, while training
    """

    causal: ClassVar[bool] = False

    def __init__(
        self,
        *,
        dim: Count = 64,
        depth: Count = 4,
        heads: Count = 4,
        prefix: Prefix = NO_PREFIX,
        init_std: Positive | None = None,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(dim=dim, depth=depth, heads=heads, prefix=prefix, init_std=init_std, dropout=dropout)
