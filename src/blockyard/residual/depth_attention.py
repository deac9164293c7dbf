"""Depth attention (attention residuals): every block reads a softmax-weighted average of all earlier additions.

Source: Kimi Team 2026, Attention Residuals (arXiv 2603.15031), the full form
Reference: torch.nn.functional.scaled_dot_product_attention over the depth of each token
Equation: y_i = sum_{j <= i} a_ij v_j,  a_i = softmax_j(w_i . rms(v_j)),  v_0 the embedded tokens, v_{j+1} the addition
    of block j to y_j
Cost: O(N D L^2) time over L visits, L vectors of parameters; all L additions are kept
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Residual, Role
from blockyard.ops.autocast import full_precision
from blockyard.weight_init import Init

Additions = tuple[Tensor, ...]  # the embedded tokens, then the addition of every visit so far, (B, N, D) each


class DepthAttention(Residual):
    """Each visit but the first, and the final norm, has a trained query. Keys are the additions, without a gain.

    Queries start at zero, so that the first averages are plain means.
    """

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"queries"})
    roles: ClassVar[dict[str, Role]] = {"queries": "output"}
    of_additions: ClassVar[bool] = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.factor = ctx.parametrization.factor("output", ctx)
        self.queries = nn.Parameter(torch.empty(ctx.visits, ctx.dim))  # (L, D), of visits 1, 2, ... and the final norm

    def init_weights(self, init: Init) -> None:
        """Set the queries to zero."""
        init.zeros("queries")

    def open(self, x: Tensor) -> Additions:
        """Return the embedded tokens."""
        return (x,)

    def read(self, state: Additions, visit: int) -> tuple[Tensor, Additions]:
        """Return the average (B, N, D)."""
        return self.close(state), state

    def write(self, state: Additions, visit: int, x: Tensor, output: Tensor) -> Additions:
        """Return the additions with the block's own behind them."""
        return (*state, output - x)

    def close(self, state: Additions) -> Tensor:
        """Return the average of the additions so far, (B, N, D)."""
        if len(state) == 1:
            return state[0]
        values = torch.stack(state)  # (L', B, N, D)
        with full_precision(values):
            query = self.queries[len(state) - 2].to(values.dtype) * self.factor
            # Keys are normalised: the softmax would otherwise follow the size of additions.
            scores = F.rms_norm(values, values.shape[-1:], eps=1e-6) @ query  # (L', B, N)
            weights = scores.softmax(0)
            return (weights.unsqueeze(-1) * values).sum(0)  # (B, N, D)
