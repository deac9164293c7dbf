"""Decoder: blocks that look back only, so that a row can be continued token by token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners
Reference: transformers GPT2LMHeadModel
Cost: that of its blocks, depth times
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.contracts import Count, Positive, Rate
from blockyard.model._plan import Stack
from blockyard.model._prefix import NO_PREFIX, Prefix


class Decoder(Stack):
    """A token sees itself and what came before; `init_cache` and a cache in `forward` decode piece by piece.

    Options:
        dim: channels of a token (D)
        depth: blocks
        heads: heads of attention (H); must divide dim
        prefix: class_token, and a number of registers, learned tokens in front of every row
        init_std: spread of initial weights, null means 1 / sqrt(D); what writes into the stream starts
            sqrt(2 depth) smaller
        dropout: rate on the tokens as they enter the first block, while training
    """

    causal: ClassVar[bool] = True

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
