"""Mixture: the weights, means and scales of a mixture of densities over the values of the next patch.

Source: Bishop 1994, Mixture Density Networks (Aston University NCRG/94/004); of vectors in a decoder Tschannen et al.
    2024, GIVT: Generative Infinite-Vocabulary Transformers (arXiv 2312.02116), section 3.2, without full covariances
Reference: torch.distributions.MixtureSameFamily
Equation: (logit_k, m_k, s_k) = W_k x_t + b_k; weight = softmax(logit), mean = m_k + e_k, log scale = s_k - log K,
    with e_k evenly spaced in [-1, 1], so that the components start apart
Cost: O(N D K V) time, K (1 + 2 V) (D + 1) parameters
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Count, Head, Seq
from blockyard.ops.linear import output

LEAST = -7.0  # smallest log scale: a thousandth of the range of values, far less than one of 256 levels


class Mixture(Head):
    """Leaves out prefix tokens. Values are from -1 to 1. Initial weights have standard deviation init_std.

    Options:
        components: number K of mixed densities
    """

    gives: ClassVar[str] = "mixture"
    spread: Tensor

    def __init__(self, ctx: Context, *, components: Count = 8) -> None:
        super().__init__()
        self.components = components
        self.values = ctx.outputs
        self.proj = output(ctx, ctx.dim, components * (1 + 2 * ctx.outputs), bias=True, place="logits")
        middle = (torch.arange(components) + 0.5) / components * 2 - 1  # (K,), from dark to bright
        self.register_buffer("spread", middle[:, None], persistent=False)

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, N, K (1 + 2 V)): for each component a logit, V means and V log scales."""
        raw = self.proj(x[:, seq.num_prefix :]).unflatten(-1, (self.components, -1))  # (B, N, K, 1 + 2 V)
        logit, mean, log_scale = raw.split([1, self.values, self.values], -1)
        log_scale = (log_scale - math.log(self.components)).clamp_min(LEAST)
        return torch.cat([logit, mean + self.spread, log_scale], -1).flatten(2)
