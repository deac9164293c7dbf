"""Decoder: causal blocks, so that a sequence can be continued token by token.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners; for sees=source the prefix language
    model of Liu et al. 2018 (arXiv 1801.10198) and Raffel et al. 2020 (arXiv 1910.10683), figure 4
Reference: transformers GPT2LMHeadModel
Cost: that of its blocks, depth times

    data.joined=true:  source 1 ... M  START  token 1 ... N      a token sees itself and earlier tokens
                                                                 sees=source: the source sees all of itself
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from blockyard.contracts import ChoiceOptions, Context, Model, Parts
from blockyard.contracts.inherited_options import with_options_of
from blockyard.model._stack import Stack
from blockyard.model._transformer import Sees


class Decoder(Stack):
    """A token sees itself and earlier tokens; with a cache from `init_cache`, `forward` takes the new tokens only.

    Options:
        sees: tokens that a token of a source in front sees: the tokens before it (past), or all of the source (source)
    """

    causal: ClassVar[bool] = True
    extends: ClassVar[bool] = True

    @with_options_of(Stack)
    def __init__(self, *, sees: Sees = "past", **options: Any) -> None:
        super().__init__(**options)
        self.sees = sees

    @classmethod
    def ties(cls, options: ChoiceOptions) -> bool:
        """Return True with sees=source."""
        return options.get("sees") == "source"

    def build(self, ctx: Context, parts: Parts) -> Model:
        """Return the model of `ctx`. Raises ValueError for sees=source without a source in front."""
        if self.sees == "source" and not ctx.data.joined:
            raise ValueError(
                "model.sees=source is about a source in front of the sequence, and this data has none; use "
                "model.sees=past, or pairs of texts with data.joined=true"
            )
        return self.transformer(replace(ctx, source_ties=self.sees == "source"), parts, sees=self.sees)
