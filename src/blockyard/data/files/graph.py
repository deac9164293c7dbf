"""An undirected graph with a target, as files hold it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass
class Graph:
    """An undirected graph with a target.

    nodes: (N, C), whole numbers; ends: (m, 2), the nodes that each edge joins; edges: (m, E), whole numbers
    target: R real values or labels, NaN where there is none, or a class
    """

    nodes: np.ndarray
    ends: np.ndarray
    edges: np.ndarray
    target: list[float] | int


def checked(graph: Graph, max_nodes: int, connected: bool) -> Graph:
    """Return a graph with each edge once. Raises ValueError for invalid edges, and for a graph that is too large.

    An edge may be written in both directions, with equal codes, as the edge_index of PyTorch Geometric has it.
    """
    count = len(graph.nodes)
    if count > max_nodes:
        raise ValueError(f"{count} atoms, more than data.max_nodes={max_nodes}")
    outside = graph.ends[((graph.ends < 0) | (graph.ends >= count)).any(1)]
    if len(outside):
        raise ValueError(f"bond {outside[0].tolist()} joins an atom that is not there; atoms are 0 to {count - 1}")
    loops = graph.ends[graph.ends[:, 0] == graph.ends[:, 1]]
    if len(loops):
        raise ValueError(f"bond {loops[0].tolist()} joins an atom with itself")
    graph = _undirected(graph)
    if connected:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        edges = coo_array((np.ones(len(graph.ends)), (graph.ends[:, 0], graph.ends[:, 1])), shape=(count, count))
        parts, _ = connected_components(edges, directed=False)
        if parts > 1:
            raise ValueError(
                f"its atoms are in {parts} parts that no bond joins; data.disconnected=keep takes such ones"
            )
    return graph


def _undirected(graph: Graph) -> Graph:
    first: dict[tuple[int, int], int] = {}  # both directions of an edge -> its row
    kept = []
    for row, (start, end) in enumerate(graph.ends.tolist()):
        if (start, end) in first:
            raise ValueError(f"bond {[start, end]} is there 2 times; write it once, or once in each direction")
        first[start, end] = row
        back = first.get((end, start))
        if back is None:
            kept.append(row)
        elif not np.array_equal(graph.edges[row], graph.edges[back]):
            codes = f"{graph.edges[back].tolist()} and {graph.edges[row].tolist()}"
            raise ValueError(
                f"bond {[end, start]} has the codes {codes} in its two directions; bonds have no direction"
            )
    if len(kept) == len(graph.ends):
        return graph
    return replace(graph, ends=graph.ends[kept], edges=graph.edges[kept])
