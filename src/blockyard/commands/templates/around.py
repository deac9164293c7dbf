"""Templates of positions and heads."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, Template

POSITION = Template(
    HEAD
    + '''from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Position, Role
from blockyard.weight_init import Init


class CLASS(Position):
    """A penalty on attention scores: the logarithm of the distance, times a learned factor of each head.

    Options:
        start: the factor of every head before training
    """

    # Which hooks act, and that adding one vector to all coordinates changes nothing: `blockyard verify` tries it.
    acts_on: ClassVar[frozenset[str]] = frozenset({"bias"})
    relative: ClassVar[bool] = True
    roles: ClassVar[dict[str, Role]] = {"factor": "fixed"}  # there are as many in a wider model

    def __init__(self, ctx: Context, *, start: float = 1.0) -> None:
        super().__init__()
        self.start = start
        self.factor = nn.Parameter(torch.empty(ctx.heads))  # (H,)

    def init_weights(self, init: Init) -> None:
        """The same factor in every head."""
        init.copy("factor", torch.full_like(self.factor, self.start))

    def bias(self, head: Tensor, q_coords: tuple[Tensor, ...], k_coords: tuple[Tensor, ...]) -> Tensor:
        """Heads and coordinates over shapes that broadcast -> what is added to the scores. Elementwise only."""
        distance = sum((q - k).abs() for q, k in zip(q_coords, k_coords, strict=True))
        return -self.factor[head] * torch.log1p(distance)
''',
    """def test_the_formula() -> None:
    position = component()
    head, q, k = torch.arange(4)[:, None, None], torch.arange(6.0)[:, None], torch.arange(6.0)
    bias = position.bias(head, (q,), (k,))
    for h in range(4):
        for i in range(6):
            for j in range(6):
                distance = torch.tensor(1.0 + abs(i - j), dtype=torch.float64)
                assert_close(bias[h, i, j].double(), -position.factor[h] * distance.log(), rtol=1e-6, atol=1e-6)
""",
    bug=("torch.log1p(distance)", "torch.log1p(2 * distance)"),
    verified=True,
)

POOLED_HEAD = Template(
    HEAD
    + '''from torch import Tensor

from blockyard.contracts import Seq
from blockyard.head._pooled import Pooled, tokens_and_mask


class CLASS(Pooled):
    """A linear layer on the largest value of each channel over the tokens.

    Options:
        bias: use a bias on the outputs
        hidden: activation of a hidden layer before the outputs; null means none
        width: channels of the hidden layer; null means model.dim
    """

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, V)."""
        return self.predict(self.pool(x, seq), seq)

    def pool(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, prefix + N, D) -> (B, D); zero for a sequence without tokens."""
        x, valid = tokens_and_mask(x, seq)
        if valid is None:
            return x.amax(1)
        largest = x.masked_fill(~valid[:, :, None], float("-inf")).amax(1)  # (B, D)
        return largest.masked_fill(~valid.any(1)[:, None], 0.0)
''',
    """def test_the_formula() -> None:
    x, seq = tokens()
    head = component()
    largest = torch.stack([torch.stack([max(column) for column in sequence.T]) for sequence in x])
    assert_close(head(x, seq), largest @ head.proj.weight.T + head.proj.bias)
""",
    bug=("x.amax(1)\n", "x.mean(1)\n"),
    beside=("data=code_topics", "objective=classify"),
    verified=True,
)
