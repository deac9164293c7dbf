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
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import ChoiceOptions, Context, Heads, Positive, Rate, Role, Seq, Traits
from blockyard.ops.cache import KVCache
from blockyard.token_mixer._query_key_norms import QueryKeyNorm
from blockyard.token_mixer._scores import ScoreScale, Sink
from blockyard.token_mixer._values import GatedValueResidual, ValueEmbedding
from blockyard.token_mixer.attention import Attention, OutputGate
from blockyard.weight_init import Init


class StrictAttention(Attention):
    """A token that sees nothing, such as the first one of a causal sequence, reads zero.

    Options:
        layers: first masks the token itself in the first block only, all in every block
        asks: own takes each token's query from the token; learned gives all tokens of a strict layer the query of
            one trained vector, which rotary positions still rotate
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        qk_norm: norm of queries and keys before rotation, with a trained gain: RMS-normalise each head (true is
            the same), all heads together (full), or by a layer norm of each head; cosine gives vectors of length one,
            and scores a trained factor for each head; sphere the same with one for each channel, after rotation, and
            scores of sqrt(key_dim); false is none
        bias: use biases in the projections
        dropout: dropout rate on the attention weights
        gate: factors in (0, 1), from the token itself, on what it has read: none, one for each head, or one for each
            channel
        score_scale: factor on the scores: null is 1 / sqrt(key_dim); a number in its place; learned, a trained factor
            for each head beside it; log_n, that times the logarithm of the number of keys that a token sees
        softcap: bound on the scores, by a tanh, before position biases; null is none
        sink: a logit of each head that takes weight and gives no value: none; zero, which lets a token read almost
            nothing; or a trained one
        exclusive: take out of what a token reads, in each head, the part along the token's own value
        tied_kv: values are the keys before their norm and rotation, without a projection of their own
        value_residual: how values are joined with those of the first layer, as in attention
        value_embedding: which layers add trained vectors of the token ids to their values: none, all, or every second
            one, the last among them (alternate)
    """

    roles: ClassVar[dict[str, Role]] = {"question": "input"}

    def __init__(
        self,
        ctx: Context,
        *,
        layers: Literal["first", "all"] = "first",
        asks: Literal["own", "learned"] = "own",
        num_kv_heads: Heads | None = None,
        qk_norm: QueryKeyNorm = False,
        bias: bool = False,
        dropout: Rate = 0.0,
        gate: OutputGate = "none",
        score_scale: ScoreScale = None,
        softcap: Positive | None = None,
        sink: Sink = "none",
        exclusive: bool = False,
        tied_kv: bool = False,
        value_residual: GatedValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
    ) -> None:
        super().__init__(
            ctx,
            num_kv_heads=num_kv_heads,
            qk_norm=qk_norm,
            bias=bias,
            dropout=dropout,
            gate=gate,
            score_scale=score_scale,
            softcap=softcap,
            sink=sink,
            exclusive=exclusive,
            tied_kv=tied_kv,
            value_residual=value_residual,
            value_embedding=value_embedding,
        )
        self.traits = _strict(self.traits, layers, asks, (value_residual, value_embedding))
        self.strict = layers == "all" or ctx.layer == 0
        learned = self.strict and asks == "learned"
        if asks == "learned" and (gate != "none" or exclusive):
            option = "exclusive=true" if exclusive else f"gate={gate}"
            raise ValueError(
                f"token_mixer.{option} depends on the token itself, of which asks=learned lets nothing through; use "
                f"{'exclusive=false' if exclusive else 'gate=none'} or asks=own"
            )
        self.question = nn.Parameter(torch.empty(ctx.dim)) if learned else None  # (D,)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Strict with a learned query; values of the tokens themselves must not enter a layer that is not."""
        named = ("value_residual", "value_embedding")
        sources = tuple(options.get(name, "none") for name in named)
        return _strict(super().traits_for(options), options.get("layers", "first"), options.get("asks", "own"), sources)

    def init_weights(self, init: Init) -> None:
        """A normal vector of the scale of a normalised token."""
        init.normal("question", std=1.0)

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """As `Attention.mix`, with the learned query in place of the tokens'; h (B, N, queries + keys + values)."""
        if self.question is not None:
            cut, bias = self.widths[0], self.proj_in.bias
            query = F.linear(self.question, self.proj_in.weight[:cut], None if bias is None else bias[:cut])  # (H K,)
            h = torch.cat([query.to(h.dtype).expand(*h.shape[:-1], -1), h[..., cut:]], dim=-1)
        return super().mix(h, seq, cache)


def _strict(traits: Traits, layers: str, asks: str, sources: tuple[str, ...]) -> Traits:
    """The traits, strict where queries are learned and no layer reads what the token itself has given.

    Without cross-attention: a memory does not hold the token itself, so that nothing would be left of the options.
    """
    strict = asks == "learned" and (layers == "all" or {*sources} == {"none"})
    return replace(traits, strict=strict, cross=False)
