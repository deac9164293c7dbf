"""Decoder: causal blocks, so that a sequence can be continued token by token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners
Reference: transformers GPT2LMHeadModel
Cost: that of its blocks, depth times
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.model._stack import Stack


class Decoder(Stack):
    """A token sees itself and earlier tokens; with a cache from `init_cache`, `forward` takes the new tokens only."""

    causal: ClassVar[bool] = True
