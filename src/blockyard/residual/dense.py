"""Dense: every block reads a weighted average of the outputs of all earlier blocks and of the embedded tokens.

Source: Pagliardini et al. 2024, DenseFormer: Enhancing Information Flow in Transformers via Depth Weighted Averaging
    (arXiv 2402.02622), sections 3 and 4
Reference: the equation
Equation: y_i = sum_j w_ij x_j over j = i, i - k, i - 2 k, ... >= 0,  x_{i+1} = block_i(y_i),  x_0 the embedded tokens
Cost: O(N D L^2 / k p) time over L visits, L^2 / 2 k p parameters with an average after every p visits; all L outputs
    are kept
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Count, Residual, Role
from blockyard.weight_init import Init

Outputs = tuple[Tensor, ...]  # the embedded tokens, then the output of every visit so far, each (B, N, D)


class Dense(Residual):
    """Starts as `add`: the weight of the last output is one, all others zero. The final norm reads an average too.

    Options:
        dilation: k, the distance in visits between two outputs of an average, counted back from the last output
        period: p, visits from one average to the next; between them blocks read the last output
    """

    roles: ClassVar[dict[str, Role]] = {"weights": "fixed"}

    def __init__(self, ctx: Context, *, dilation: Count = 1, period: Count = 1) -> None:
        super().__init__(ctx)
        if period > ctx.visits:
            raise ValueError(
                f"residual.period={period} takes no average in {ctx.visits} visits of blocks; use {ctx.visits} or less"
            )
        self.dilation = dilation
        # By the number of visits before an average: the index of its first weight, and the number of its weights.
        self.parts: dict[int, tuple[int, int]] = {}
        start = 0
        for visits in range(period, ctx.visits + 1, period):
            self.parts[visits] = (start, visits // dilation + 1)
            start += visits // dilation + 1
        self.weights = nn.Parameter(torch.empty(start))  # one average after the other, each from its last output back

    def init_weights(self, init: Init) -> None:
        """Set the weight of the last output to one, of all others to zero."""
        weights = torch.zeros(self.weights.shape)
        weights[[start for start, _ in self.parts.values()]] = 1.0
        init.copy("weights", weights)

    def open(self, x: Tensor) -> Outputs:
        """Return the embedded tokens."""
        return (x,)

    def read(self, state: Outputs, visit: int) -> tuple[Tensor, Outputs]:
        """Return the average (B, N, D)."""
        return self.close(state), state

    def write(self, state: Outputs, visit: int, x: Tensor, output: Tensor) -> Outputs:
        """Return the outputs with one more."""
        return (*state, output)

    def close(self, state: Outputs) -> Tensor:
        """Return the average of the outputs so far, (B, N, D), or the last output between two averages."""
        visits = len(state) - 1
        if visits not in self.parts:
            return state[-1]
        start, count = self.parts[visits]
        # Weights run from the last output back, `dilation` visits at a time.
        average = self.weights[start] * state[-1]
        for index in range(1, count):
            average = average + self.weights[start + index] * state[-1 - index * self.dilation]
        return average
