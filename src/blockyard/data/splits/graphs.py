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
import numpy.typing as npt
import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import (
    UNREACHABLE,
    Batch,
    BatchSize,
    Because,
    DataSpec,
    GraphTokenizer,
    InputReader,
    NewInputs,
    Splits,
    Tokenizer,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.file_names import new_file
from blockyard.data.files.graph import Graph
from blockyard.data.files.molecules import read_unlabelled
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.split import target_moments

# Facts of pairs of nodes: distances, and the edges along a shortest path.
#
# Source: Ying et al. 2021, Graphormer (arXiv 2106.05234), sections 3.1.2 and 3.1.3
# Reference: networkx.all_shortest_paths; scipy.sparse.csgraph.shortest_path
#
# Where several shortest paths join two nodes, the one whose codes of edges are first in dictionary order counts, so
# that the facts do not depend on the numbering of nodes.

FARTHEST = UNREACHABLE - 1  # distances beyond it are kept as it
MOST_STEPS = 7  # codes of edges along a path that fit into one 64-bit number

Ints = npt.NDArray[np.int64]


def pair_facts(nodes: int, ends: Ints, codes: Ints, steps: int) -> npt.NDArray[np.uint8]:
    """Return the facts (N, N, 1 + steps): the distance, then the codes of the first `steps` edges of the path.

    ends: (m, 2), the nodes that each edge joins, both ways; codes: (m,), from 1 to 255
    A path of fewer edges has codes 0 behind its end.
    """
    source, target = np.concatenate([ends, ends[:, ::-1]]).T  # 2 x (2 m,)
    distance = _distances(nodes, source, target)
    facts = np.zeros((nodes, nodes, 1 + steps), dtype=np.uint8)
    facts[..., 0] = np.where(np.isinf(distance), UNREACHABLE, np.minimum(distance, FARTHEST))
    if steps and len(ends):
        order = np.argsort(source, kind="stable")
        both = np.concatenate([codes, codes])
        facts[..., 1:] = _first_codes(distance, source[order], target[order], both[order], steps)
    return facts


def _distances(nodes: int, source: Ints, target: Ints) -> npt.NDArray[np.float64]:
    """Return the number of edges between each pair of nodes (N, N); infinite without a path."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    pairs = source.astype(np.int32), target.astype(np.int32)  # scipy 1.13 requires int32 indices
    edges = coo_array((np.ones(len(source)), pairs), shape=(nodes, nodes))
    distance: npt.NDArray[np.float64] = shortest_path(edges.tocsr(), unweighted=True, directed=False)
    return distance


def _first_codes(distance: npt.NDArray[np.float64], source: Ints, target: Ints, codes: Ints, steps: int) -> Ints:
    """Return the codes of the first edges on the smallest of all shortest paths, (N, N, steps).

    source, target, codes: directed edges (2 m,), in order of their source
    """
    starts = np.flatnonzero(np.diff(source, prepend=-1))  # the first edge of each source
    # (2 m, N): whether the edge is the first of a shortest path to a node
    onward = (distance[target] + 1 == distance[source]) & np.isfinite(distance[source])
    rest = np.zeros(distance.shape, dtype=np.int64)  # the codes of the rest of the path as one number
    beyond = np.iinfo(np.int64).max
    for step in range(steps):
        candidates = np.where(onward, codes[:, None] * 256**step + rest[target], beyond)  # (2 m, N)
        best = np.full(distance.shape, beyond)
        best[source[starts]] = np.minimum.reduceat(candidates, starts)
        rest = np.where(best == beyond, 0, best)  # the node itself, and nodes without a path
    return np.stack([rest >> 8 * (steps - 1 - step) & 255 for step in range(steps)], axis=-1)


def graph_key(graph: Graph) -> str:
    """Return a hash of the nodes and edges of a graph and of their codes, which does not depend on their numbering.

    Source: Shervashidze et al. 2011, Weisfeiler-Lehman Graph Kernels, section 3
    Reference: networkx.weisfeiler_lehman_graph_hash

    Nodes begin with their distances to all others, without which two rings that share an edge have the hash of two that
    an edge joins. Few graphs share it although they differ, all of them without codes and dense.
    """
    from networkx import Graph as Network
    from networkx import weisfeiler_lehman_graph_hash

    count = len(graph.nodes)
    distances = np.sort(_distances(count, *graph.ends.T), axis=1)  # (N, N)
    network = Network()
    for node, (codes, others) in enumerate(zip(graph.nodes.tolist(), distances.tolist(), strict=True)):
        network.add_node(node, codes=f"{codes} {others}")
    for (first, second), codes in zip(graph.ends.tolist(), graph.edges.tolist(), strict=True):
        network.add_edge(first, second, codes=str(codes))
    key: str = weisfeiler_lehman_graph_hash(network, edge_attr="codes", node_attr="codes")
    return key


Steps = Annotated[int, Ge(0), Le(MOST_STEPS), Because("the codes along a path are compared as one number")]


class GraphParts(NamedTuple):
    """The graphs of each split."""

    train: list[Graph]
    validation: list[Graph]
    test: list[Graph]


@dataclass
class GraphSplit:
    """Graphs of one split, padded to the largest.

    nodes: (n, N, C + 1) uint8 codes, the last column a degree; pairs: (n, N, N, 1 + steps) uint8; lengths: (n,) int64
    target: (n, R) float32, standardized, NaN where there is none; labels as they are; or classes (n,) int64
    mean, std: (R,) of the training split, in the units of the data; empty for classes and labels
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
        """Return inputs (B, longest, C + 1) int64, pairs (B, longest, longest, 1 + steps) uint8, lengths, targets."""
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
        """Return the largest number of nodes, and the columns of a node without its degree."""

    @abstractmethod
    def targets(self) -> int | None:
        """Return the number of real values per graph, or of labels; None where its target is a class."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the labels where there are `labels`; none for two classes without names."""
        return ()

    @property
    def labels(self) -> bool:
        """Return whether the targets are labels, 0 or 1 each."""
        return False

    @property
    def spec(self) -> DataSpec:
        """Graphs of different sizes."""
        (nodes, columns), targets = self.size(), self.targets()
        return DataSpec(
            "graph",
            (nodes, columns + 1),
            variable=True,
            target="class" if targets is None else "labels" if self.labels else "values",
            classes=len(self.class_names) or 2 if targets is None else targets if self.labels else None,
            class_names=self.class_names,
            values=None if targets is None or self.labels else (targets,),
            pairs=1 + self.path_steps,
        )

    @abstractmethod
    def read(self) -> GraphParts:
        """Read the graphs of each split."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read the graphs, fit the tokenizer on the training split unless its state was loaded, and encode them.

        Raises ValueError for a target that does not vary in the training split.
        """
        if not isinstance(tokenizer, GraphTokenizer):
            raise ValueError(f"graphs need a tokenizer of graphs, not {type(tokenizer).__name__}")
        class_of = (lambda graph: graph.target) if self.targets() is None else None
        parts = GraphParts(*self.kept_of(self.read(), class_of))
        if not tokenizer.state():
            nodes, edges = (_stacked(parts.train, name) for name in ("nodes", "edges"))
            tokenizer.fit(nodes, edges)
        splits = [self.encoded(graphs, tokenizer) for graphs in parts]
        if self.labels:
            for split in splits:
                split.target = split.target.float()
        elif self.targets() is not None:
            _standardize(splits)
        self._fingerprint = sha256(
            tensor for split in splits for tensor in (split.lengths, split.nodes, split.pairs, split.target)
        )
        return Splits(*splits)

    def encoded(self, graphs: Sequence[Graph], tokenizer: GraphTokenizer) -> GraphSplit:
        """Return graphs as a fitted tokenizer encodes them, with their targets as they are."""
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

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Read the graphs of files, by file and line. Raises UserError for other columns than in training."""
        assert isinstance(reader.tokenizer, GraphTokenizer)
        most, columns = self.size()
        connected = getattr(self, "disconnected", "keep") == "refuse"
        edges = reader.tokenizer.state().get("edges") or [[]]
        names, graphs = [], []
        for path in map(new_file, inputs):
            for line in read_unlabelled(path, columns, len(edges[0]), most, connected):
                names.append(f"{path}, line {line.number}")
                graphs.append(line.graph)
        return NewInputs(names, self.encoded(graphs, reader.tokenizer))


def _stacked(graphs: Sequence[Graph], name: str) -> Tensor:
    return torch.from_numpy(np.concatenate([getattr(graph, name) for graph in graphs]))


def _standardize(splits: Sequence[GraphSplit]) -> None:
    """Put the targets of all splits in standard deviations of the training split, as `target_moments` does."""
    values = splits[0].target
    mean, std = target_moments(values, [str(number) for number in range(1, 1 + values.shape[1])])
    for split in splits:
        split.mean, split.std = mean, std
        split.target = ((split.target - mean) / std).float()
