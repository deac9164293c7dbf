"""Random walks: the probabilities that a walk is back at its node after 1, 2, ... steps, projected and added.

Source: Dwivedi et al. 2022, Graph Neural Networks with Learnable Structural and Positional Representations
    (arXiv 2110.07875), section 3.3
Reference: torch_geometric.transforms.AddRandomWalkPE
Equation: x_i + W [R_ii, (R^2)_ii, ..., (R^steps)_ii], R_ij = A_ij / degree(i)
Cost: O(steps N^3) time, steps D parameters
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because, Context, Position
from blockyard.ops.autocast import full_precision
from blockyard.ops.linear import Linear
from blockyard.position._absolute import check_axes

Walk = Annotated[int, Ge(1), Le(1_024), Because("every step is a product of matrices")]


class RandomWalk(Position):
    """Nodes that the probabilities do not tell apart get the same code; nothing in it names a node.

    Options:
        steps: longest walk
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"embed_pairs"})
    axes: ClassVar[frozenset[int]] = frozenset({0})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, steps: Walk = 8) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.steps = steps
        self.proj = Linear(steps, ctx.dim, bias=True, std=ctx.token_std, role="input")

    def embed_pairs(self, x: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
        """x (B, N, D), distances (B, N, N) -> (B, N, D)."""
        return x + self.proj(return_probabilities(pairs[0] == 1, self.steps).to(x.dtype))  # (B, N, D)


def return_probabilities(joined: Tensor, steps: int) -> Tensor:
    """Return the probabilities of being back after each step: joined (B, N, N) bool -> (B, N, steps)."""
    adjacency = joined.to(torch.get_default_dtype())
    walk = adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1)  # (B, N, N), rows sum to one or, alone, to zero
    power = walk
    diagonals = [walk.diagonal(dim1=-2, dim2=-1)]  # (B, N)
    with full_precision(walk):  # products of products would round more with each step
        for _ in range(steps - 1):
            power = power @ walk
            diagonals.append(power.diagonal(dim1=-2, dim2=-1))
    return torch.stack(diagonals, dim=-1)  # (B, N, steps)
