"""FIRE: a learned function of distances as a share of the context, so that longer sequences stay in its range.

Source: Li et al. 2024, Functional Interpolation for Relative Positions Improves Long Context Transformers
    (arXiv 2310.04418), section 3.2
Reference: the formula with torch.nn.Linear, in the tests
Equation: score_ij + f_h(psi(i - j) / psi(max(L, i))), psi(x) = log(c x + 1), f an MLP of one hidden layer, trained L, c
Cost: O(N M hidden) time in each head; (H + 2) hidden + H + 2 parameters, shared by all layers

Up to index L distances count as they are, later ones as a share of the tokens that a query sees. So a bias also depends
on the index of the query, and not on the offset alone.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from blockyard.contracts import Because, Context, Length, Position, Positive, Role
from blockyard.position._absolute import check_axes
from blockyard.weight_init import Init

Hidden = Annotated[int, Ge(1), Le(256), Because("each channel is computed for every pair of tokens")]
TRAINED = ("into", "into_bias", "out", "out_bias", "scale", "threshold")
EPS = 1e-6  # added to the divisor, which is 0 for a first token with a threshold of 0


class Fire(Position):
    """For causal models on a line.

    Options:
        hidden: channels of the hidden layer
        threshold: initial L, in tokens; null is half the length of the data
        scale: initial c
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    axes: ClassVar[frozenset[int]] = frozenset({1})
    needs_causal: ClassVar[bool] = True
    reads_once = False
    roles: ClassVar[dict[str, Role]] = dict.fromkeys(TRAINED, "fixed")

    def __init__(
        self,
        ctx: Context,
        *,
        hidden: Hidden = 32,
        threshold: Length | None = None,
        scale: Positive = 0.1,
    ) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.start = (ctx.tokens.max_len / 2 if threshold is None else threshold, scale)
        self.into = nn.Parameter(torch.empty(hidden))
        self.into_bias = nn.Parameter(torch.empty(hidden))
        self.out = nn.Parameter(torch.empty(ctx.heads, hidden))
        self.out_bias = nn.Parameter(torch.empty(ctx.heads))
        self.threshold = nn.Parameter(torch.empty(1))
        self.scale = nn.Parameter(torch.empty(1))

    def init_weights(self, init: Init) -> None:
        """Draw weights for unit inputs and outputs; biases of zero; L and c from the options."""
        init.normal("into", std=1.0)
        init.normal("out", std=self.out.shape[1] ** -0.5)
        init.zeros("into_bias")
        init.zeros("out_bias")
        init.constant("threshold", self.start[0])
        init.constant("scale", self.start[1])

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Return the MLP of the normalised distance, for heads and coordinates over shapes that broadcast."""
        (q,), (k,) = q_coords, k_coords
        scale = self.scale[0].abs()  # training may move c and L below zero
        reach = torch.maximum(q.to(scale.dtype), self.threshold[0].abs())
        share = torch.log1p(scale * (q - k).clamp(min=0)) / (torch.log1p(scale * reach) + EPS)
        total = self.out_bias[head]
        # Channel by channel: a score of FlexAttention is a single number, and elsewhere this avoids a table of
        # N x M x hidden numbers.
        for channel in range(len(self.into)):
            total = total + self.out[head, channel] * torch.relu(self.into[channel] * share + self.into_bias[channel])
        return total
