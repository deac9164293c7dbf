"""Non-local means: each token becomes an average of all, weighed by one of four similarities.

Source: Wang et al. 2018, Non-local Neural Networks (arXiv 1711.07971), eq. 1 to 5 and figure 2
Reference: mmcv cnn/bricks/non_local.py; AlexHex7 Non-local_pytorch
Equation: y_i = W_z sum_j f(x_i, x_j) g(x_j) / C_i; f = e^(x_i . x_j), e^(theta_i . phi_j), theta_i . phi_j or
    relu(w . [theta_i, phi_j]); C_i = sum_j f for the first two, the number of tokens seen for the others
Cost: O(N^2 D) time; O(N) memory with a fused kernel for the first two scores, O(N^2) for the others
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Positive, Rate, Seq, TokenMixer, Traits
from blockyard.ops.attend import attend
from blockyard.ops.cache import KVCache
from blockyard.ops.custom_weights import average, weigh
from blockyard.ops.linear import linear, residual
from blockyard.token_mixer._declared import check_call, check_context

EXPONENTIAL = ("gaussian", "embedded_gaussian")


class NonLocal(TokenMixer):
    """One head, and no port for positions: similarity is of content alone. The block adds the residual.

    Options:
        score: gaussian compares tokens as they are, embedded_gaussian what two layers make of them;
            dot_product takes the product itself, concatenation a layer over both
        width: channels of what is compared and averaged, as a fraction of model.dim
        scale: factor on the products; 1 is the published form, in which wide tokens see little but themselves
        bias: biases in the layers
        dropout: rate on the weights of the average while training
    """

    traits: ClassVar[Traits] = Traits(causal=True, padding=True, packing=True, equivariant=True)

    def __init__(
        self,
        ctx: Context,
        *,
        score: Literal["gaussian", "embedded_gaussian", "dot_product", "concatenation"] = "embedded_gaussian",
        width: Positive = 0.5,
        scale: Positive = 1.0,
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        inner = max(1, round(width * ctx.dim))
        self.causal, self.score, self.scale, self.inner = ctx.causal, score, scale, inner
        self.dropout = dropout
        self.compares = 0 if score == "gaussian" else inner
        self.key_dim = {"gaussian": ctx.dim, "concatenation": 2}.get(score, inner)
        # theta and phi where there are any, then g
        self.proj_in = linear(ctx, ctx.dim, 2 * self.compares + inner, bias=bias, content=2 * self.compares)
        self.pair = linear(ctx, 2 * inner, 1) if score == "concatenation" else None
        self.proj_out = residual(ctx, inner, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        theta, phi, g = self.proj_in(x).split([self.compares, self.compares, self.inner], dim=-1)
        q, k, v = (each[:, None] for each in (*self._compared(x, theta, phi), g))  # 3 x (B, 1, N, ...)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)
        facts = {"scale": self.scale, "dropout": self.dropout if self.training else 0.0}
        if self.score in EXPONENTIAL:
            y = attend(q, k, v, seq, k_seq, self.causal, **facts)  # (B, 1, N, inner)
        else:
            y = weigh(q, k, v, seq, k_seq, self.causal, rule=self._rule(), **facts)
        return self.proj_out(y[:, 0])  # (B, N, D)

    def init_cache(self, batch_size: int) -> KVCache:
        """An empty cache. Raises ValueError where outputs depend on the future."""
        if not self.causal:
            raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")
        return KVCache(batch_size, 1, self.key_dim, self.inner)

    def _compared(self, x: Tensor, theta: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """What products are taken of: 2 x (B, N, key_dim)."""
        if self.score == "gaussian":
            return x, x
        if self.pair is None:
            return theta, phi
        # w . [theta_i, phi_j] is a sum of two numbers, which is the product of (a_i, 1) and (1, b_j).
        first, second = self.pair.weight.split(self.inner, dim=-1)  # 2 x (1, inner)
        a, b = F.linear(theta, first), F.linear(phi, second)  # 2 x (B, N, 1)
        return torch.cat([a, torch.ones_like(a)], -1), torch.cat([torch.ones_like(b), b], -1)  # 2 x (B, N, 2)

    def _rule(self) -> partial[Tensor]:
        return partial(average, activation=F.relu if self.score == "concatenation" else None)
