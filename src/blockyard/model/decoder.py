"""Decoder: blocks that look back only, so that a row can be continued token by token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners
Reference: transformers GPT2LMHeadModel
Cost: that of its blocks, depth times
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.model._stack import Stack


class Decoder(Stack):
    """A token sees itself and what came before; `init_cache` and a cache in `forward` decode piece by piece."""

    causal: ClassVar[bool] = True
