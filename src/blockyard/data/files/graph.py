"""An undirected graph with a target, as files hold it."""

from __future__ import annotations

from dataclasses import dataclass

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


def check_graph(graph: Graph, max_nodes: int, connected: bool) -> None:
    """Raise ValueError for a graph whose edges are not edges between its nodes, or that is too large."""
    count = len(graph.nodes)
    if count > max_nodes:
        raise ValueError(f"{count} atoms, more than data.max_nodes={max_nodes}")
    outside = graph.ends[((graph.ends < 0) | (graph.ends >= count)).any(1)]
    if len(outside):
        raise ValueError(f"bond {outside[0].tolist()} joins an atom that is not there; atoms are 0 to {count - 1}")
    loops = graph.ends[graph.ends[:, 0] == graph.ends[:, 1]]
    if len(loops):
        raise ValueError(f"bond {loops[0].tolist()} joins an atom with itself")
    pairs, counts = np.unique(np.sort(graph.ends, axis=1), axis=0, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"bond {pairs[counts.argmax()].tolist()} is there {counts.max()} times")
    parts = _parts(count, graph.ends) if connected else 1
    if parts > 1:
        raise ValueError(f"its atoms are in {parts} parts that no bond joins; data.disconnected=keep takes such ones")


def _parts(count: int, ends: np.ndarray) -> int:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    return int(connected_components(edges, directed=False)[0])
