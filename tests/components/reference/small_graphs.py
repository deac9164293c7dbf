"""Small graphs of networkx, and their facts written with loops."""

from __future__ import annotations

from itertools import pairwise

import networkx
import numpy as np
import torch
from torch import Tensor

from blockyard.data.splits.graphs import pair_facts
from blockyard.position.graph import GraphDistance
from tests.support.helpers import PAIRS

STEPS = len(PAIRS) - 1
SIZES = (7, 5, 1)


def graph(nodes: int, seed: int = 0) -> networkx.Graph:
    """A random graph with a node apart, several shortest paths between nodes, and edges of types 1 to 3."""
    random_graph = networkx.gnp_random_graph(nodes, 0.5, seed=seed)
    random_graph.remove_edges_from(list(random_graph.edges(nodes - 1)))
    draws = np.random.default_rng(seed)
    for edge in random_graph.edges:
        random_graph.edges[edge]["type"] = int(draws.integers(1, 4))
    return random_graph


def facts_of(graphs: list[networkx.Graph]) -> Tensor:
    """The padded facts of pairs (B, N, N, P), as data sets give them."""
    most = max(map(len, graphs))
    facts = torch.zeros(len(graphs), most, most, 1 + STEPS, dtype=torch.uint8)
    for number, each in enumerate(graphs):
        ends = np.array(each.edges, dtype=np.int64).reshape(-1, 2)
        types = np.array([each.edges[edge]["type"] for edge in each.edges], dtype=np.int64)
        facts[number, : len(each), : len(each)] = torch.from_numpy(pair_facts(len(each), ends, types, STEPS))
    return facts


def path_types(each: networkx.Graph, i: int, j: int) -> list[int]:
    """The types of the edges along the first of all shortest paths in dictionary order."""
    paths = networkx.all_shortest_paths(each, i, j)
    return min([each.edges[a, b]["type"] for a, b in pairwise(path)] for path in paths)


GRAPHS = [graph(size, seed) for seed, size in enumerate(SIZES)]


def looped_bias(position: GraphDistance, each: networkx.Graph, head: int) -> Tensor:
    """Graphormer, eq. 6 and 7, pair by pair: (N, N)."""
    lengths = dict(networkx.all_pairs_shortest_path_length(each))
    bias = torch.zeros(len(each), len(each), dtype=torch.float64)
    for i in each:
        for j in each:
            if j not in lengths[i]:
                bias[i, j] = position.distances[head, position.max_distance + 2]
                continue
            bias[i, j] = position.distances[head, min(lengths[i][j], position.max_distance + 1)]
            types = path_types(each, i, j)[: position.steps] if i != j else []
            weights = [position.edges[head, step, kind] for step, kind in enumerate(types)]
            bias[i, j] += sum(weights) / len(weights) if weights else 0.0
    return bias
