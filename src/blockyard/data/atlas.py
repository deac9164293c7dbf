"""All graphs of four to seven nodes: 1,245 graphs, none isomorphic to another, and a property computed exactly.

Source: Read and Wilson 1998, An Atlas of Graphs; Fiedler 1973, Algebraic connectivity of graphs
Reference: networkx.graph_atlas_g

    connectivity     second smallest eigenvalue of the Laplacian; zero for a graph in several parts
    triangles        triples of nodes that are joined pairwise
    spanning_trees   logarithm of one plus their number (Kirchhoff's theorem)
    planar           whether the graph can be drawn without crossings, a class

Nodes carry nothing, so a model knows a graph only by the facts of pairs of nodes that its positions use. Included in
networkx, which torch requires; needs no network.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from blockyard.data.files.graph import Graph
from blockyard.data.splits.graphs import GraphData, GraphParts, Steps
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import DrawnSplits, Fraction

LEAST = 4  # the atlas has eight smaller graphs, too few to tell anything about their sizes


@dataclass(kw_only=True, eq=False)
class Atlas(DrawnSplits, GraphData):
    """Graphs without columns; every edge is of one kind.

    Options:
        property: what is predicted; planar is a class, the others are real values
        validation_fraction: share of the graphs that is the validation split
        test_fraction: share of the graphs that is the test split
        split_seed: seed of the splits; independent of the run's seed, so that all seeds share them
    """

    path_steps: Steps = 0  # edges of one kind tell no more than distances
    property: Literal["connectivity", "triangles", "spanning_trees", "planar"] = "connectivity"
    test_fraction: Fraction = 0.2

    def size(self) -> tuple[int, int]:
        """Return seven nodes without columns."""
        return 7, 0

    def targets(self) -> int | None:
        """Return 1, one real value per graph, or None for a class."""
        return None if self.property == "planar" else 1

    def read(self) -> GraphParts:
        """Read the list that comes with networkx, and compute the property of each graph."""
        graphs = [self._graph(count, ends) for count, ends in _read_atlas() if count >= LEAST]
        generator = torch.Generator().manual_seed(mix("atlas", self.split_seed))
        order = torch.randperm(len(graphs), generator=generator)
        validation = round(self.validation_fraction * len(graphs))
        test = round(self.test_fraction * len(graphs))
        parts = []
        for indices in order.split([len(graphs) - validation - test, validation, test]):
            parts.append([graphs[index] for index in indices.sort().values.tolist()])
        return GraphParts(*parts)

    def _graph(self, count: int, ends: np.ndarray) -> Graph:
        laplacian = np.zeros((count, count))
        for i, j in ends:
            laplacian[[i, j], [i, j]] += 1
            laplacian[[i, j], [j, i]] -= 1
        nodes = np.zeros((count, 0), dtype=np.int64)
        edges = np.zeros((len(ends), 1), dtype=np.int64)
        if self.property == "planar":
            import networkx

            graph = networkx.empty_graph(count)
            graph.add_edges_from(ends.tolist())
            return Graph(nodes, ends, edges, int(networkx.check_planarity(graph)[0]))
        return Graph(nodes, ends, edges, [_value(self.property, laplacian)])


def _value(name: str, laplacian: np.ndarray) -> float:
    """Return a property of the graph with this Laplacian (N, N)."""
    if name == "connectivity":
        # Of a graph in several parts the eigenvalue is 0, which rounding may bring below 0.
        return max(0.0, float(np.linalg.eigvalsh(laplacian)[1]))
    if name == "spanning_trees":
        # Kirchhoff's theorem: any cofactor of the Laplacian is the number of spanning trees, a whole number.
        trees = round(float(np.linalg.det(laplacian[1:, 1:])))
        return math.log1p(max(0, trees))
    # Each triangle is six closed walks of three edges: from three nodes, in two directions.
    adjacency = np.diag(np.diag(laplacian)) - laplacian
    return float(np.trace(adjacency @ adjacency @ adjacency)) / 6


def _read_atlas() -> list[tuple[int, np.ndarray]]:
    """Return the number of nodes and the edges (m, 2) of every graph.

    Importing networkx takes longer than reading its file, so the file is read directly.
    """
    package = importlib.util.find_spec("networkx")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("data=atlas reads a file of networkx: pip install networkx")
    path = Path(package.submodule_search_locations[0]) / "generators" / "atlas.dat.gz"
    graphs: list[tuple[int, list[list[int]]]] = []
    with gzip.open(path, "rt", encoding="ascii") as file:
        for line in file:
            if line.startswith("GRAPH"):
                continue
            if line.startswith("NODES"):
                graphs.append((int(line.split()[1]), []))
            else:
                graphs[-1][1].append([int(node) for node in line.split()])
    return [(count, np.array(ends, dtype=np.int64).reshape(-1, 2)) for count, ends in graphs]
