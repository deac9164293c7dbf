"""Nodes of a graph as tokens: a node is the sum of one learned vector for each of its columns.

Source: Ying et al. 2021, Do Transformers Really Perform Bad for Graph Representation? (Graphormer, arXiv 2106.05234),
    section 3.1.1 for degrees (centrality encoding, eq. 5)
Reference: microsoft/Graphormer, graphormer/modules/graphormer_layers.py, GraphNodeFeature
Equation: x_i = sum_c table_c[code_c(i)], plus degrees[min(degree(i), max_degree)] if max_degree is set
Cost: O(N D) for each column

    node      columns: 6 3 0            code 0 stands for a value that the training split does not have
    token     atoms[6] + bonds[3] + charge[0]
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from blockyard.contracts import (
    Because,
    Context,
    DataSpec,
    Embedder,
    GraphTokenizer,
    Role,
    Seq,
    TokenizerState,
    TokenSpec,
)
from blockyard.weight_init import Init

MOST = 254  # distinct values of a column: codes are bytes, and 0 stands for other values
DISTANCES = 256
Degree = Annotated[int, Ge(1), Le(255), Because("degrees are kept as bytes")]


class Nodes(GraphTokenizer):
    """Learns the values of each column of nodes, and the combinations of values of edges.

    Options:
        max_degree: add a vector of the node's degree, shared by all degrees from this one on; null adds none
    """

    def __init__(self, *, max_degree: Degree | None = None) -> None:
        self.max_degree = max_degree
        self.load_state({})

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per node. Before `fit`, every column counts as large as it may become."""
        if data.modality != "graph":
            raise ValueError(f"tokenizer=nodes reads graphs, the data gives {data.things}")
        nodes, columns = data.shape
        if self._fitted:
            values = len(self._edges)
            codes = tuple(len(column) + 1 for column in self._nodes)
        else:
            values = MOST
            codes = (MOST + 1,) * (columns - 1)
        if data.pairs is None:
            raise ValueError("tokenizer=nodes needs graphs with a distance for each pair of nodes (DataSpec.pairs)")
        return TokenSpec(
            (),
            variable=data.variable,
            count=nodes,
            codes=(*codes, DISTANCES),
            pairs=(DISTANCES, *[values + 2] * (data.pairs - 1)),
        )

    def embedder(self, ctx: Context) -> NodeEmbedder:
        """Build the tables."""
        return NodeEmbedder(ctx, self.max_degree)

    def fit(self, nodes: Tensor, edges: Tensor) -> None:
        """Keep the sorted values of each column of nodes (n, C), and the sorted distinct rows of edges (m, E).

        Raises ValueError for a column with more values than a byte counts.
        """
        columns = [column.unique().tolist() for column in nodes.unbind(1)]
        kinds = edges.unique(dim=0).tolist() if edges.numel() else [[]][: len(edges)]
        for name, values in [*((f"column {c} of nodes", v) for c, v in enumerate(columns)), ("edges", kinds)]:
            if len(values) > MOST:
                raise ValueError(
                    f"{name}: {len(values)} distinct values, more than {MOST}; use codes, not measurements"
                )
        self.load_state({"nodes": columns, "edges": kinds})

    def encode_nodes(self, nodes: Tensor) -> Tensor:
        """Return codes (n, C): the rank of each value from 1, or 0 for values that the training split lacks."""
        codes = torch.zeros_like(nodes)
        for column, values in enumerate(self._nodes):
            codes[:, column] = _rank(nodes[:, column].contiguous(), torch.tensor(values, dtype=torch.int64))
        return codes

    def encode_edges(self, edges: Tensor) -> Tensor:
        """Return codes (m,): 2 or more for a row of the training split, 1 for any other; 0 is reserved for no edge."""
        codes_by_row = {tuple(row): code for code, row in enumerate(self._edges, start=2)}
        if not edges.numel():  # `unique` takes no empty rows
            return torch.full((len(edges),), codes_by_row.get((), 1))
        rows, inverse = edges.unique(dim=0, return_inverse=True)
        codes = torch.tensor([codes_by_row.get(tuple(row), 1) for row in rows.tolist()], dtype=torch.int64)
        return codes[inverse]

    def state(self) -> TokenizerState:
        """Return the values of each column, and the rows of edges."""
        if self._fitted:
            return {"nodes": self._nodes, "edges": self._edges}
        return {}

    def load_state(self, state: TokenizerState) -> None:
        """Restore a `state`. Raises ValueError if it is damaged."""
        nodes = state.get("nodes", [])
        edges = state.get("edges", [])
        if state and not (state.keys() == {"nodes", "edges"} and _numbers(nodes) and _numbers(edges)):
            raise ValueError("not the saved state of tokenizer=nodes: nodes and edges are lists of whole numbers")
        self._fitted = bool(state)
        self._nodes = nodes
        self._edges = edges


class NodeEmbedder(Embedder):
    """Sums the vectors of a node's columns; without columns every node is the same vector."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"codes", "degrees"})
    roles: ClassVar[dict[str, Role]] = {"codes": "input", "degrees": "input"}

    def __init__(self, ctx: Context, max_degree: int | None) -> None:
        super().__init__()
        assert ctx.tokens.codes is not None
        sizes = ctx.tokens.codes[:-1]  # the last column is the degree
        self.columns = len(sizes)
        self.max_degree = max_degree
        summed = self.columns + (max_degree is not None)  # vectors of a node
        self.std = ctx.input_std / max(summed, 1) ** 0.5
        starts = torch.tensor([0, *sizes]).cumsum(0)
        # A copy, because torch.export cannot save an empty view of a tensor that is not empty.
        self.register_buffer("starts", starts[:-1].clone(), persistent=False)  # (C,), first rows of each column's table
        self.starts: Tensor
        self.codes = nn.Parameter(torch.empty(max(int(sum(sizes)), 1), ctx.dim))  # (codes of all columns, D)
        self.degrees = None if max_degree is None else nn.Parameter(torch.empty(max_degree + 1, ctx.dim))

    def init_weights(self, init: Init) -> None:
        """Draw normal vectors with a sum of the standard deviation of a token."""
        init.normal("codes", std=self.std)
        init.normal("degrees", std=self.std)

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Codes (B, N, C + 1) with degrees in the last column -> x (B, N, D), Seq of a set. Padding is zero."""
        if segment is not None or start:
            raise ValueError("a graph is one set of nodes; leave segment and cache out")
        if inputs.ndim != 3 or inputs.shape[2] != self.columns + 1:
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)}: this model reads nodes (batch, nodes, {self.columns + 1}), "
                "codes and a degree"
            )
        if self.columns:
            x = self.codes[inputs[..., :-1] + self.starts].sum(2)  # (B, N, D)
        else:
            x = self.codes[torch.zeros_like(inputs[..., 0])]  # (B, N, D)
        if self.degrees is not None and self.max_degree is not None:
            x = x + self.degrees[inputs[..., -1].clamp(max=self.max_degree)]
        index = torch.arange(inputs.shape[1], device=inputs.device)
        valid = None if lengths is None else index < lengths[:, None]  # (B, N)
        if valid is not None:
            x = x * valid[..., None]
        return x, Seq(index, x.new_zeros((1, len(index), 0)), valid, grid=())


def _rank(values: Tensor, sorted_values: Tensor) -> Tensor:
    """Return the rank of each value among the sorted known ones, from 1, or 0 for an unknown value."""
    if not len(sorted_values):
        return torch.zeros_like(values)
    at = torch.searchsorted(sorted_values, values).clamp(max=len(sorted_values) - 1)
    return torch.where(sorted_values[at] == values, at + 1, 0)


def _numbers(columns: Any) -> bool:
    """Return whether `columns` is a list of lists of whole numbers."""
    if not isinstance(columns, list):
        return False
    for column in columns:
        if not isinstance(column, list) or any(type(value) is not int for value in column):  # bool is an int too
            return False
    return True
