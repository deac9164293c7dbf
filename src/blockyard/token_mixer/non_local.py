"""Non-local means: each token becomes an average of all tokens, weighted by one of four similarities.

Source: Wang et al. 2018, Non-local Neural Networks (arXiv 1711.07971), eq. 1 to 5 and figure 2
Reference: mmcv cnn/bricks/non_local.py; AlexHex7 Non-local_pytorch
Equation: y_i = W_z sum_j f(x_i, x_j) g(x_j) / C_i; f = e^(x_i . x_j), e^(theta_i . phi_j), theta_i . phi_j or
    relu(w . [theta_i, phi_j]); C_i = sum_j f for the first two, the number of tokens seen for the others
Cost: O(N^2 D) time; O(N) memory with a fused kernel for the first two scores, O(N^2) for the others
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import ChoiceOptions, Context, Memory, Positive, Rate, Seq, TokenMixer, Traits
from blockyard.ops.attend import attend
from blockyard.ops.cache import KVCache
from blockyard.ops.custom_weights import average, weigh
from blockyard.ops.linear import linear, output, residual
from blockyard.ops.mask import Visibility
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer._values import ValueEmbedding, ValueResidual, declared, value_sources

EXPONENTIAL = ("gaussian", "embedded_gaussian")


class NonLocal(TokenMixer):
    """One head and no port for positions: similarity depends on content only. The block adds the residual.

    Options:
        score: gaussian compares the tokens themselves, embedded_gaussian two projections of them; dot_product uses
            the product itself, concatenation a linear layer over both
        width: width of the compared and averaged vectors, as a fraction of model.dim
        scale: factor on the products; 1 is the published form, with which wide tokens see little but themselves
        bias: use biases in the layers
        dropout: dropout rate on the weights of the average
        value_residual: how values are joined with the values of the first layer: none; mixed is their mean; learned a
            sum with two trained numbers for each layer
        value_embedding: layers that add trained vectors of the token ids to their values: none, all, or every second
            layer, counted back from the last one (alternate)
    """

    traits = Traits(causal=True, padding=True, packing=True, equivariant=True)

    def __init__(
        self,
        ctx: Context,
        *,
        score: Literal["gaussian", "embedded_gaussian", "dot_product", "concatenation"] = "embedded_gaussian",
        width: Positive = 0.5,
        scale: Positive = 1.0,
        bias: bool = False,
        dropout: Rate = 0.0,
        value_residual: ValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
    ) -> None:
        super().__init__()
        options = {"value_residual": value_residual, "value_embedding": value_embedding}
        self.traits = declared(self.traits, options)
        check_context(self, ctx)
        inner = max(1, round(width * ctx.dim))
        self.causal = ctx.causal
        self.score = score
        self.inner = inner
        # Products are sums over the channels: in a wider model they shall be as large.
        self.scale = scale / (1.0 if score == "concatenation" else ctx.width_ratio)
        self.dropout = dropout
        if score == "dot_product":
            self.fades = "its weights are scores, whose random part before training is a mean over the channels"
        self.embedded = 0 if score == "gaussian" else inner  # width of theta and of phi
        self.key_dim = {"gaussian": ctx.dim, "concatenation": 2}.get(score, inner)
        self.proj_in = linear(ctx, ctx.dim, 2 * self.embedded + inner, bias=bias, content=2 * self.embedded)
        self.value_sources = value_sources(self, ctx, 1, inner, value_residual, value_embedding)
        self.pair = output(ctx, 2 * inner, 1) if score == "concatenation" else None
        self.proj_out = residual(ctx, inner, ctx.dim, bias=bias)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits under `value_residual` and `value_embedding`."""
        return declared(cls.traits, options)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        theta, phi, g = self.proj_in(x).split([self.embedded, self.embedded, self.inner], dim=-1)
        q, k = self._queries_and_keys(x, theta, phi)  # 2 x (B, N, key_dim)
        q, k, v = q[:, None], k[:, None], g[:, None]  # 3 x (B, 1, N, ...)
        if self.value_sources is not None:
            v = self.value_sources(v, seq)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)
        if seq.position is not None:  # a scheme of other layers: this one has no port for it
            bare = replace(seq, position=None, memo={})
            k_seq = bare if k_seq is seq else replace(k_seq, position=None, memo={})
            seq = bare
        rate = self.dropout if self.training else 0.0
        if self.score in EXPONENTIAL:
            y = attend(q, k, v, seq, k_seq, Visibility(self.causal), scale=self.scale, dropout=rate)  # (B, 1, N, inner)
        else:
            rule = partial(average, activation=F.relu if self.score == "concatenation" else None)
            y = weigh(q, k, v, seq, k_seq, Visibility(self.causal), rule=rule, scale=self.scale, dropout=rate)
        return self.proj_out(y[:, 0])  # (B, N, D)

    def init_cache(self, batch_size: int) -> KVCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return KVCache(batch_size, 1, self.key_dim, self.inner)

    def _queries_and_keys(self, x: Tensor, theta: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two factors of every score: 2 x (B, N, key_dim)."""
        if self.score == "gaussian":
            return x, x
        if self.pair is None:
            return theta, phi
        # w . [theta_i, phi_j] = a_i + b_j is the inner product of (a_i, 1) and (1, b_j).
        first, second = self.pair.weight.split(self.inner, dim=-1)  # 2 x (1, inner)
        factor = self.pair.factor
        a = F.linear(theta * factor, first)  # (B, N, 1)
        b = F.linear(phi * factor, second)  # (B, N, 1)
        return torch.cat([a, torch.ones_like(a)], -1), torch.cat([torch.ones_like(b), b], -1)  # 2 x (B, N, 2)
