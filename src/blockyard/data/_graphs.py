"""Shared parts of graphs: what one is, and padded tensors of their nodes and of the facts of each pair of nodes.

    nodes   (columns..., degree)         codes of the tokenizer; 0 stands for values that were not in training
    pairs   (distance, edge, edge, ...)  of each pair of nodes: edges are those along the path, from its start

Everything is computed once, by `load`; a batch is cut to its largest graph.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Batch, BatchSize, Because, DataSpec, GraphTokenizer, Splits, Tokenizer
from blockyard.data._graph_paths import MOST_STEPS, pair_facts
from blockyard.data._loaded import LoadedData
from blockyard.data._split import sha256

Steps = Annotated[int, Ge(0), Le(MOST_STEPS), Because("the codes along a path are compared as one number")]


@dataclass
class Graph:
    """An undirected graph with a target.

    nodes: (N, C), whole numbers; ends: (m, 2), the nodes that each edge joins; edges: (m, E), whole numbers
    target: R real values, NaN where there is none, or a class
    """

    nodes: np.ndarray
    ends: np.ndarray
    edges: np.ndarray
    target: list[float] | int


class GraphParts(NamedTuple):
    """The graphs of each split."""

    train: list[Graph]
    validation: list[Graph]
    test: list[Graph]


@dataclass
class GraphSplit:
    """Graphs of one split, padded to the largest.

    nodes: (n, N, C + 1) uint8 codes, the last column a degree; pairs: (n, N, N, 1 + steps) uint8; lengths: (n,) int64
    target: (n, R) float32, standardized, NaN where there is none; or classes (n,) int64
    mean, std: (R,) of the training split, in the units of the data; empty for classes
    """

    nodes: Tensor
    pairs: Tensor
    lengths: Tensor
    target: Tensor
    mean: Tensor = field(default_factory=lambda: torch.zeros(0))
    std: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns inputs (B, longest, C + 1) int64, pairs (B, longest, longest, 1 + steps) uint8, lengths, targets."""
        lengths = self.lengths[order]
        longest = int(lengths.max())
        nodes, pairs = self.nodes[order, :longest], self.pairs[order, :longest, :longest]
        return Batch(nodes.long(), self.target[order], lengths=lengths, pairs=pairs)


@dataclass(kw_only=True, eq=False)
class GraphData(LoadedData):
    """Graphs in memory. Subclasses implement `size`, `targets` and `read`.

    Options:
        path_steps: edges of each shortest path that are kept, for position=graph
    """

    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 256
    path_steps: Steps = 5

    @abstractmethod
    def size(self) -> tuple[int, int]:
        """The largest number of nodes, and the columns of a node without its degree."""

    @abstractmethod
    def targets(self) -> int | None:
        """The number of real values per graph; None where its target is one of two classes."""

    @property
    def spec(self) -> DataSpec:
        """Graphs of different sizes."""
        (nodes, columns), targets = self.size(), self.targets()
        return DataSpec(
            "graph",
            (nodes, columns + 1),
            variable=True,
            target="class" if targets is None else "values",
            classes=2 if targets is None else None,
            values=None if targets is None else (targets,),
            pairs=1 + self.path_steps,
        )

    @abstractmethod
    def read(self) -> GraphParts:
        """Reads the graphs of each split."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Reads the graphs, fits the tokenizer on the training split unless its state was loaded, and encodes them.

        Raises ValueError for a target that does not vary in the training split.
        """
        if not isinstance(tokenizer, GraphTokenizer):
            raise ValueError(f"graphs need a tokenizer of graphs, not {type(tokenizer).__name__}")
        parts = GraphParts(*self.kept_of(self.read()))
        if not tokenizer.state():
            nodes, edges = (_stacked(parts.train, name) for name in ("nodes", "edges"))
            tokenizer.fit(nodes, edges)
        splits = [self._padded(graphs, tokenizer) for graphs in parts]
        if self.targets() is not None:
            _standardize(splits)
        self._fingerprint = sha256(
            tensor for split in splits for tensor in (split.lengths, split.nodes, split.pairs, split.target)
        )
        return Splits(*splits)

    def _padded(self, graphs: Sequence[Graph], tokenizer: GraphTokenizer) -> GraphSplit:
        lengths = [len(graph.nodes) for graph in graphs]
        largest, columns = max(lengths), self.size()[1]
        nodes = torch.zeros(len(graphs), largest, columns + 1, dtype=torch.uint8)
        pairs = torch.zeros(len(graphs), largest, largest, 1 + self.path_steps, dtype=torch.uint8)
        node_codes = tokenizer.encode_nodes(_stacked(graphs, "nodes")).split(lengths)
        edge_codes = tokenizer.encode_edges(_stacked(graphs, "edges")).split([len(graph.ends) for graph in graphs])
        for i, (graph, n, of_nodes, of_edges) in enumerate(zip(graphs, lengths, node_codes, edge_codes, strict=True)):
            nodes[i, :n, :-1] = of_nodes
            nodes[i, :n, -1] = torch.from_numpy(np.bincount(graph.ends.ravel(), minlength=n).clip(max=255))
            facts = pair_facts(n, graph.ends, of_edges.numpy(), self.path_steps)
            pairs[i, :n, :n] = torch.from_numpy(facts)
        kind = torch.int64 if self.targets() is None else torch.float64
        target = torch.tensor([graph.target for graph in graphs], dtype=kind)
        return GraphSplit(nodes, pairs, torch.tensor(lengths), target)


def _stacked(graphs: Sequence[Graph], name: str) -> Tensor:
    return torch.from_numpy(np.concatenate([getattr(graph, name) for graph in graphs]))


def _standardize(splits: Sequence[GraphSplit]) -> None:
    """Put the targets of all splits in standard deviations of the training split. Raises ValueError if one is zero."""
    values = splits[0].target
    mean = values.nanmean(0)
    std = (values - mean).square().nanmean(0).sqrt()
    for task, size in enumerate(std.tolist()):
        if not size > 1e-12 * max(1.0, abs(mean[task].item())):
            raise ValueError(f"target {task + 1} has one value or none in the training split; leave it out")
    for split in splits:
        split.mean, split.std = mean, std
        split.target = ((split.target - mean) / std).float()
