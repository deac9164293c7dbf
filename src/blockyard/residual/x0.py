"""x0: every block reads a weighted sum of the stream and of the embedded tokens.

Source: Jordan et al. 2024, modded-nanogpt (github.com/KellerJordan/modded-nanogpt), the two lambdas of each block
Reference: the equation, in modded-nanogpt and in nanochat (resid_lambdas, x0_lambdas)
Equation: x_{l+1} = block_l(a_l x_l + b_l x_0)
Cost: O(N D) time, two parameters a visit
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, NonNegative, Residual, Role
from blockyard.weight_init import Init

State = tuple[Tensor, Tensor]  # the stream and the embedded tokens, 2 x (B, N, D)


class EmbeddedTokens(Residual):
    """Starts as `add`: a = 1, b = 0. Both are trained, one pair for each visit of a block.

    Options:
        start: initial weight b of the embedded tokens
    """

    roles: ClassVar[dict[str, Role]] = {"stream_weights": "fixed", "token_weights": "fixed"}

    def __init__(self, ctx: Context, *, start: NonNegative = 0.0) -> None:
        super().__init__(ctx)
        self.start = start
        self.stream_weights = nn.Parameter(torch.empty(ctx.visits))
        self.token_weights = nn.Parameter(torch.empty(ctx.visits))

    def init_weights(self, init: Init) -> None:
        """Set the weight of the stream to one and of the embedded tokens to `start`."""
        init.ones("stream_weights")
        init.constant("token_weights", self.start)

    def open(self, x: Tensor) -> State:
        """Return the embedded tokens as the stream, and once more to be kept."""
        return x, x

    def read(self, state: State, visit: int) -> tuple[Tensor, State]:
        """Return the weighted sum (B, N, D)."""
        x, tokens = state
        return self.stream_weights[visit] * x + self.token_weights[visit] * tokens, state

    def write(self, state: State, visit: int, x: Tensor, output: Tensor) -> State:
        """Return the output of the block as the stream."""
        return output, state[1]

    def close(self, state: Any) -> Tensor:
        """Return the stream."""
        x: Tensor = state[0]
        return x
