"""Backout: a trained multiple of the stream in the middle of a model is subtracted in front of its final norm.

Source: Jordan et al. 2024, modded-nanogpt (github.com/KellerJordan/modded-nanogpt), backout_lambda; karpathy/nanochat
    nanochat/gpt.py
Reference: the formula
Equation: norm(x_L - b x_m), with x_m the output of visit m of a block and a trained b, at first 0.2 as in nanochat
Cost: O(N D) time, one parameter; one more stream is kept
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Role
from blockyard.weight_init import Init

FIRST_WEIGHT = 0.2


class Backout(nn.Module):
    """forward(x, middle) -> (B, N, D). Raises ValueError if no visit of a block follows.

    after: number of visits of blocks that `middle` has passed
    """

    roles: ClassVar[dict[str, Role]] = {"weight": "fixed"}

    def __init__(self, ctx: Context, after: int) -> None:
        super().__init__()
        if after >= ctx.visits:
            remedy = f"model.backout={ctx.visits // 2}" if ctx.visits > 1 else "a larger model.depth, or null"
            raise ValueError(
                f"model.backout={after} takes out the stream after {after} visits of blocks, and there are "
                f"{ctx.visits}; use {remedy}"
            )
        self.after = after
        self.weight = nn.Parameter(torch.empty(1))

    def init_weights(self, init: Init) -> None:
        """Set the weight to 0.2."""
        init.constant("weight", FIRST_WEIGHT)

    def forward(self, x: Tensor, middle: Tensor) -> Tensor:
        """x and middle (B, N, D) -> (B, N, D)."""
        return x - self.weight.to(x.dtype) * middle
