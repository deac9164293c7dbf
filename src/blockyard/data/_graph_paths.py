"""Facts of pairs of nodes: distances, and the edges along a shortest path.

Source: Ying et al. 2021, Graphormer (arXiv 2106.05234), sections 3.1.2 and 3.1.3
Reference: networkx.all_shortest_paths; scipy.sparse.csgraph.shortest_path

Where several shortest paths join two nodes, the one whose codes of edges are first in dictionary order counts, so that
the facts do not depend on the numbering of nodes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blockyard.contracts import UNREACHABLE

FARTHEST = UNREACHABLE - 1  # distances beyond it are kept as it
MOST_STEPS = 7  # codes of edges along a path that fit into one 64-bit number

Ints = npt.NDArray[np.int64]


def pair_facts(nodes: int, ends: Ints, codes: Ints, steps: int) -> npt.NDArray[np.uint8]:
    """Returns the facts (N, N, 1 + steps): the distance, then the codes of the first `steps` edges of the path.

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
    """The number of edges between each pair of nodes (N, N); infinite without a path."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    pairs = source.astype(np.int32), target.astype(np.int32)  # scipy 1.13 requires int32 indices
    edges = coo_array((np.ones(len(source)), pairs), shape=(nodes, nodes))
    distance: npt.NDArray[np.float64] = shortest_path(edges.tocsr(), unweighted=True, directed=False)
    return distance


def _first_codes(distance: npt.NDArray[np.float64], source: Ints, target: Ints, codes: Ints, steps: int) -> Ints:
    """The codes of the first edges on the smallest of all shortest paths, (N, N, steps).

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
