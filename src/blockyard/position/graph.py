"""Graph distance: a learned number for each head and each distance between two nodes, and for the edges between them.

Source: Ying et al. 2021, Do Transformers Really Perform Bad for Graph Representation? (Graphormer, arXiv 2106.05234),
    eq. 6 and 7
Reference: microsoft/Graphormer, graphormer/modules/graphormer_layers.py, GraphAttnBias
Equation: score_ij + b_h[distance(i, j)] + mean over the first edges e_1, e_2, ... of the path of w_h[s, type of e_s]
Cost: an N x N table for each head; H (max_distance + 3 + steps times the types of edges) parameters, shared by all
    layers

    distance   0   1   2  ...  max_distance | farther | no path | a class token or register at either end
    number     b0  b1  b2 ...  b8           | b9      | b10     | one of its own

The paper's edge term is the mean of inner products of the edges' features with a weight for each step; with one code an
edge that is a number for each step and code.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from blockyard.contracts import UNREACHABLE, Because, Context, CountOrZero, NonNegative, Position, Role
from blockyard.position._absolute import check_axes
from blockyard.weight_init import Init

Distance = Annotated[int, Ge(1), Le(UNREACHABLE - 1), Because("distances are kept as bytes")]


class GraphDistance(Position):
    """Reads facts of pairs and no coordinates, so that renumbering nodes changes nothing.

    Options:
        max_distance: largest distance with a number of its own
        steps: edges of each path that add a number for their type; null takes all edges of the data, 0 none
        std: standard deviation of the initial numbers
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"relate"})
    roles: ClassVar[dict[str, Role]] = {"distances": "fixed", "edges": "fixed", "prefix": "fixed"}
    axes: ClassVar[frozenset[int]] = frozenset({0})
    relative: ClassVar[bool] = True
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"distances", "edges"})

    def __init__(
        self, ctx: Context, *, max_distance: Distance = 8, steps: CountOrZero | None = None, std: NonNegative = 0.02
    ) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        codes = ctx.tokens.pairs
        if codes is None:
            raise ValueError("position=graph reads distances between nodes, which this data has not; use position=none")
        steps = len(codes) - 1 if steps is None else steps
        if steps > len(codes) - 1:
            raise ValueError(
                f"position.steps={steps}: the data keeps {len(codes) - 1} edges of each path; use "
                f"data.path_steps={steps} or position.steps={len(codes) - 1}"
            )
        self.max_distance = max_distance
        self.steps = steps
        self.std = std
        self.distances = nn.Parameter(torch.empty(ctx.heads, max_distance + 3))  # (H, distances, farther, no path)
        self.edges = nn.Parameter(torch.empty(ctx.heads, steps, codes[1])) if steps else None  # (H, steps, types)
        self.prefix = nn.Parameter(torch.empty(ctx.heads)) if ctx.num_prefix else None  # (H,)

    def init_weights(self, init: Init) -> None:
        """Draw normal numbers."""
        for name in ("distances", "edges", "prefix"):
            init.normal(name, std=self.std)

    def relate(self, head: Tensor, pairs: tuple[Tensor, ...]) -> Tensor:
        """Return the numbers of distances and edges, for heads and facts over shapes that broadcast."""
        distance = pairs[0]
        bucket = distance.clamp(max=self.max_distance + 1)
        bucket = torch.where(distance == UNREACHABLE, self.max_distance + 2, bucket)
        out = self.distances[head, bucket]
        if self.edges is None:
            return out
        total = torch.zeros_like(out)
        for step, code in enumerate(pairs[1 : 1 + self.steps]):
            total = total + torch.where(code > 0, self.edges[head, step, code], 0.0)
        return out + total / distance.clamp(1, self.steps)  # the mean over the edges of the path that count

    def at_prefix(self, head: Tensor) -> Tensor:
        """Return the number of pairs with a class token or register: the paper's distance to its virtual node."""
        if self.prefix is None:
            return super().at_prefix(head)
        return self.prefix[head]
