"""Strict attention: a token does not see itself, in the first layer or in every layer.

Source: Germain et al. 2015, MADE (arXiv 1502.03509), and van den Oord et al. 2016, Pixel Recurrent Neural Networks
    (arXiv 1601.06759), section 3.4: mask "A" in the first layer, "B" after it
Reference: the diagonal masked out of torch.nn.MultiheadAttention
Equation: softmax(Q K^T / sqrt(K)) V over j < i; bidirectional, over j != i
Cost: that of attention; the causal form needs no mask, the same kernel runs over all queries but the first

    A strict token does not read itself, but its query still depends on it. To predict a token from the others,
    nothing of it may reach its output: use asks=learned and a block without a residual. Then objective.shift=0 can
    train the model to give each token at its own position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import ChoiceOptions, Context, Role, Seq, Traits
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.cache import KVCache
from blockyard.token_mixer.attention import Attention, OutputGate
from blockyard.weight_init import Init


class StrictAttention(Attention):
    """A token reads zero if it sees nothing, as the first one of a causal sequence does.

    Options:
        layers: first masks the token itself in the first block only, all in every block
        asks: own takes each token's query from the token; learned gives all tokens of a strict layer the query of
            one trained vector, still rotated by rotary positions
    """

    roles: ClassVar[dict[str, Role]] = {"question": "input"}

    @with_options_of(
        Attention,
        without=("key_dim", "value_dim", "output_dim", "project", "fused", "map", "conv", "mimetic", "kv_every"),
    )
    def __init__(
        self,
        ctx: Context,
        *,
        layers: Literal["first", "all"] = "first",
        asks: Literal["own", "learned"] = "own",
        **options: Any,
    ) -> None:
        super().__init__(ctx, **options)
        sources = (options.get("value_residual", "none"), options.get("value_embedding", "none"))
        self.traits = _strict(self.traits, layers, asks, sources)
        self.strict = layers == "all" or ctx.layer == 0
        learned = self.strict and asks == "learned"
        if asks == "learned":
            _check_reads_others(gate=options.get("gate", "none"), exclusive=options.get("exclusive", False))
        self.question = nn.Parameter(torch.empty(ctx.dim)) if learned else None  # (D,)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits: strict with a learned query, unless a layer reads values of the tokens themselves."""
        sources = (options.get("value_residual", "none"), options.get("value_embedding", "none"))
        return _strict(super().traits_for(options), options.get("layers", "first"), options.get("asks", "own"), sources)

    def init_weights(self, init: Init) -> None:
        """Draw a normal vector of the scale of a normalised token."""
        init.normal("question", std=1.0)

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """Attend as `Attention.mix` does, with the learned query in place of the queries of the tokens.

        h: (B, N, queries + keys + values)
        """
        if self.question is not None:
            cut = self.widths[0]
            bias = None if self.proj_in.bias is None else self.proj_in.bias[:cut]
            query = F.linear(self.question, self.proj_in.weight[:cut], bias)  # (H K,)
            h = torch.cat([query.to(h.dtype).expand(*h.shape[:-1], -1), h[..., cut:]], dim=-1)
        return super().mix(h, seq, cache)


def _strict(traits: Traits, layers: str, asks: str, sources: tuple[str, ...]) -> Traits:
    """Return the traits: strict if queries are learned and no layer reads values that the token itself has given."""
    # No cross-attention: a memory does not hold the token itself, so the options would have no effect.
    strict = asks == "learned" and (layers == "all" or {*sources} == {"none"})
    return replace(traits, strict=strict, cross=False)


def _check_reads_others(*, gate: OutputGate, exclusive: bool) -> None:
    """Raise ValueError for options of attention that let a token read itself."""
    if exclusive:
        option, without = "exclusive=true", "exclusive=false"
    elif gate != "none":
        option, without = f"gate={gate}", "gate=none"
    else:
        return
    raise ValueError(
        f"token_mixer.{option} depends on the token itself, of which asks=learned lets nothing through; use {without} "
        "or asks=own"
    )
