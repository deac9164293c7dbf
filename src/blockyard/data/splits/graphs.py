"""Shared parts of data sets of graphs: padded tensors of nodes, and facts of each pair of nodes.

    nodes   (columns..., degree)         codes of the tokenizer; 0 stands for values that were not in training
    pairs   (distance, edge, edge, ...)  codes of the edges along a shortest path, from its start

Everything is computed once, by `load`. A batch is cut to its largest graph.

Source: Ying et al. 2021, Graphormer (arXiv 2106.05234), sections 3.1.2 and 3.1.3
Reference: networkx.all_shortest_paths; scipy.sparse.csgraph.shortest_path
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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

FARTHEST = UNREACHABLE - 1  # larger distances are stored as this one
MOST_STEPS = 7  # codes of edges along a path that fit into one 64-bit number

Ints = npt.NDArray[np.int64]
Steps = Annotated[int, Ge(0), Le(MOST_STEPS), Because("the codes along a path are compared as one number")]


def pair_facts(nodes: int, ends: Ints, codes: Ints, steps: int) -> npt.NDArray[np.uint8]:
    """Return the facts (N, N, 1 + steps): the distance, then the codes of the first `steps` edges of the path.

    A path of fewer edges has codes 0 behind its end. Of several shortest paths, the one with the smallest codes in
    dictionary order counts, so that the facts do not depend on the numbering of nodes.

    ends: (m, 2), the nodes that each edge joins, in both directions; codes: (m,), from 1 to 255
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
    """Return the codes of the first edges on the shortest path that comes first in dictionary order, (N, N, steps).

    source, target, codes: directed edges (2 m,), in order of their source
    """
    starts = np.flatnonzero(np.diff(source, prepend=-1))  # the first edge of each source
    # (2 m, N): whether the edge is the first of a shortest path to a node
    onward = (distance[target] + 1 == distance[source]) & np.isfinite(distance[source])
    rest = np.zeros(distance.shape, dtype=np.int64)  # the codes of the rest of the path as one number
    beyond = np.iinfo(np.int64).max
    # A round puts a first edge before the best path that the round before found from its other end.
    for step in range(steps):
        # The first edge is the highest digit in base 256, so that numbers compare as sequences of codes do.
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
        nodes, columns = self.size()
        targets = self.targets()
        spec = DataSpec(
            "graph",
            (nodes, columns + 1),
            variable=True,
            class_names=self.class_names,
            pairs=1 + self.path_steps,
        )
        if targets is None:
            return replace(spec, target="class", classes=len(self.class_names) or 2)
        if self.labels:
            return replace(spec, target="labels", classes=targets)
        return replace(spec, target="values", values=(targets,))

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
            tokenizer.fit(_stacked(parts.train, "nodes"), _stacked(parts.train, "edges"))
        splits = [self.encoded(graphs, tokenizer) for graphs in parts]
        if self.labels:
            for split in splits:
                split.target = split.target.float()  # as logits are, for the loss
        elif self.targets() is not None:
            _standardize(splits)
        contents: list[Tensor] = []
        for split in splits:
            contents += [split.lengths, split.nodes, split.pairs, split.target]
        self._fingerprint = sha256(contents)
        return Splits(*splits)

    def encoded(self, graphs: Sequence[Graph], tokenizer: GraphTokenizer) -> GraphSplit:
        """Return graphs as a fitted tokenizer encodes them, with their targets as they are."""
        lengths = [len(graph.nodes) for graph in graphs]
        largest = max(lengths)
        _, columns = self.size()
        nodes = torch.zeros(len(graphs), largest, columns + 1, dtype=torch.uint8)
        pairs = torch.zeros(len(graphs), largest, largest, 1 + self.path_steps, dtype=torch.uint8)
        node_codes = tokenizer.encode_nodes(_stacked(graphs, "nodes")).split(lengths)
        edge_codes = tokenizer.encode_edges(_stacked(graphs, "edges")).split([len(graph.ends) for graph in graphs])
        for i, (graph, n, codes, edges) in enumerate(zip(graphs, lengths, node_codes, edge_codes, strict=True)):
            degree = np.bincount(graph.ends.ravel(), minlength=n)
            nodes[i, :n, :-1] = codes
            nodes[i, :n, -1] = torch.from_numpy(degree.clip(max=255))  # the largest number of a byte
            facts = pair_facts(n, graph.ends, edges.numpy(), self.path_steps)
            pairs[i, :n, :n] = torch.from_numpy(facts)
        # Real values stay in double precision until they are standardized.
        dtype = torch.int64 if self.targets() is None else torch.float64
        target = torch.tensor([graph.target for graph in graphs], dtype=dtype)
        return GraphSplit(nodes, pairs, torch.tensor(lengths), target)

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Read the graphs of files, by file and line. Raises UserError for other columns than in training."""
        assert isinstance(reader.tokenizer, GraphTokenizer)
        most, columns = self.size()
        connected = getattr(self, "disconnected", "keep") == "refuse"
        edges = reader.tokenizer.state().get("edges") or [[]]  # distinct rows of the columns of an edge
        names = []
        graphs = []
        for path in map(new_file, inputs):
            for line in read_unlabelled(path, columns, len(edges[0]), most, connected):
                names.append(f"{path}, line {line.number}")
                graphs.append(line.graph)
        return NewInputs(names, self.encoded(graphs, reader.tokenizer))


def _stacked(graphs: Sequence[Graph], name: str) -> Tensor:
    return torch.from_numpy(np.concatenate([getattr(graph, name) for graph in graphs]))


def _standardize(splits: Sequence[GraphSplit]) -> None:
    """Standardize the targets of all splits, in place, by the `target_moments` of the training split."""
    values = splits[0].target
    mean, std = target_moments(values, [str(number) for number in range(1, 1 + values.shape[1])])
    for split in splits:
        split.mean, split.std = mean, std
        split.target = ((split.target - mean) / std).float()
