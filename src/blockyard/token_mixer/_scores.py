"""The scores of softmax attention: their scale, their bound, and a sink for weight that no key deserves.

Source: Nakanishi 2025, Scalable-Softmax Is Superior for Attention (arXiv 2501.19399), eq. 4, for `log_n`; Henry et al.
    2020, Query-Key Normalization (arXiv 2010.04245), section 3, for a trained factor; Gemma 2 and gpt-oss for cap and
    sink: see ops/shaping.py
Reference: transformers Gemma2Attention (query_pre_attn_scalar, attn_logit_softcapping), GptOssAttention (sinks)
Equation: s = c tanh(g q k^T / c), w_j = e^(s_j) / (e^z + sum_i e^(s_i)), for each head with
    score_scale    null    g = 1 / sqrt(K)                       sink    none       without e^z
                   4.0     g = 4                                         zero       z = 0
                   learned g = t / sqrt(K), at first t = 1               learned    z trained, at first 0
                   log_n   g = t ln(n) / sqrt(K) where a query sees n keys, at first t = 1 / ln(N) with N the longest
    with qk_norm=sphere g = sqrt(K), and q k^T = sum_c s_c^2 q_c k_c with a trained s for each channel, at first 1
Cost: up to two numbers for each head; a cap rules out scaled_dot_product_attention
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Positive, Role, Seq
from blockyard.ops import mask
from blockyard.ops.mask import Visibility
from blockyard.ops.scaled_vector import ScaledVector
from blockyard.ops.shaping import Shaping
from blockyard.weight_init import Init

ScoreScale = Positive | Literal["learned", "log_n"] | None
Sink = Literal["none", "zero", "learned"]


class Scores(nn.Module):
    """The trained numbers of the scores of one layer, and the arguments of `ops.attend` that describe the scores.

    heads: number of query heads
    width: channels of queries in each head
    cosine: queries and keys have length one, and queries a trained factor
    sphere: queries and keys have length one, and the scores a trained factor for each channel
    scale: the constant factor on the scores; None is 1 / sqrt(width)
    """

    roles: ClassVar[dict[str, Role]] = {"factor": "fixed", "sink": "fixed"}

    def __init__(
        self,
        ctx: Context,
        heads: int,
        width: int,
        *,
        grows: bool = True,
        cosine: bool = False,
        sphere: bool = False,
        score_scale: ScoreScale = None,
        softcap: Positive | None = None,
        sink: Sink = "none",
    ) -> None:
        super().__init__()
        if (cosine or sphere) and score_scale == "learned":
            kind, part = ("cosine", "head") if cosine else ("sphere", "channel")
            raise ValueError(
                f"token_mixer.score_scale=learned: qk_norm={kind} has a trained factor for each {part}; leave one out"
            )
        self.heads = heads
        self.cap = softcap
        self.by_count = score_scale == "log_n"
        self.scale = ctx.score_scale(width, grows=grows)
        # Under a parametrization scores of wider heads stay as large: cosines do, products of K channels do not.
        head_factor = ctx.parametrization.factor("scores", ctx) * ctx.head_ratio**0.5
        number = None if isinstance(score_scale, str) else score_scale
        if sphere:
            self.scale = head_factor * (number or (width / (ctx.head_ratio if grows else 1.0)) ** 0.5)
        elif cosine:
            self.scale = head_factor * (number or 1.0)
        elif number is not None:
            self.scale = number * (head_factor / ctx.head_ratio if grows else head_factor)
        self.factor = nn.Parameter(torch.empty(heads)) if score_scale in ("learned", "log_n") else None
        # log_n starts at t = 1 / ln(N), so that scores of the longest sequence have the usual scale.
        self.first_factor = 1 / math.log(max(2, ctx.tokens.max_len + ctx.num_prefix)) if self.by_count else 1.0
        self.sink = nn.Parameter(torch.empty(heads)) if sink == "learned" else None
        self.zero_sink = sink == "zero"
        self.channels = ScaledVector(ctx, heads * width) if sphere else None  # s, of query heads

    def init_weights(self, init: Init) -> None:
        """Set factors that change nothing at first, and sinks of zero."""
        init.constant("factor", self.first_factor)
        init.zeros("sink")

    @property
    def shaping(self) -> Shaping:
        """The cap and the sink."""
        return Shaping(self.cap, 0.0 if self.zero_sink else self.sink)

    def channel_factors(self) -> Tensor:
        """Return the square of s: (H, 1, K)."""
        assert self.channels is not None
        # Scaling q by s^2 is scaling q and k by s, also if there are fewer heads of keys.
        return self.channels().square().unflatten(0, (self.heads, 1, -1))

    def scaled(self, q: Tensor, seq: Seq, k_seq: Seq, visibility: Visibility) -> Tensor:
        """Multiply queries (B, H, N, K) by their trained factors, with log_n by the logarithm of the keys each sees."""
        if self.channels is not None:
            q = q * self.channel_factors().to(q.dtype)
        if self.factor is None:
            return q
        factor = self.factor[:, None, None]  # (H, 1, 1)
        if self.by_count:
            factor = factor * mask.count(seq, k_seq, visibility).clamp(min=1).to(factor.dtype).log()  # (B|1, H, N, 1)
        return q * factor.to(q.dtype)
