"""Dynamic tanh (DyT): an elementwise tanh with a learned scale; no statistics.

Source: Zhu et al. 2025, Transformers without Normalization (arXiv 2503.10622), section 4
Reference: none in torch or transformers
Equation: tanh(alpha x) * gain + bias
Cost: O(N D) time, 2 D + 1 parameters
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Positive, Role
from blockyard.weight_init import Init


class DyT(nn.Module):
    """Elementwise: nothing is reduced over channels or tokens.

    Options:
        start: initial alpha; the paper takes 0.5, and for large language models up to 1 before attention
    """

    roles: ClassVar[dict[str, Role]] = {"alpha": "fixed", "weight": "vector", "bias": "vector"}

    def __init__(self, ctx: Context, *, start: Positive = 0.5) -> None:
        super().__init__()
        self.start = start
        self.alpha = nn.Parameter(torch.empty(1))
        self.weight = nn.Parameter(torch.empty(ctx.dim))
        self.bias = nn.Parameter(torch.empty(ctx.dim))

    def init_weights(self, init: Init) -> None:
        """Set alpha to `start`, gain one, bias zero."""
        init.constant("alpha", self.start)
        init.ones("weight")
        init.zeros("bias")

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return torch.tanh(self.alpha * x) * self.weight + self.bias
