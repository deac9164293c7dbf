"""k-means: a fixed number of centres, each the mean of the points that are nearest to it.

Source: Lloyd 1982, Least Squares Quantization in PCM; Arthur and Vassilvitskii 2007, k-means++, for the start
Reference: sklearn.cluster.KMeans
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 65_536  # points whose distances are computed at a time


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Returns the number of the nearest centre (K, F) of each point (n, F): (n,) int64; the first of equal ones."""
    # |p - c|^2 without |p|^2, which is the same for all centres.
    offset = centres.square().sum(1)
    return torch.cat([(offset - 2 * part @ centres.T).argmin(1) for part in points.split(_CHUNK)])


def kmeans(points: Tensor, count: int, generator: torch.Generator, rounds: int = 30) -> Tensor:
    """Returns `count` centres (K, F) of points (n, F) float. Every centre is drawn, and redrawn, by `generator`.

    A centre without points moves to a point far from its own centre. With fewer different points than centres, some
    centres are equal, and no point is nearest to the later ones.
    """
    centres = _start(points, count, generator)
    for _ in range(rounds):
        owner = nearest(points, centres)
        sizes = torch.bincount(owner, minlength=count)  # (K,)
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        moved = torch.where(sizes[:, None] > 0, sums / sizes.clamp_min(1)[:, None], centres)
        empty = (sizes == 0).nonzero()[:, 0]
        if len(empty):
            moved[empty] = _far(points, (points - moved[owner]).square().sum(1), len(empty), generator)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _start(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Points far from each other, (K, F): each is drawn by its squared distance to the nearest so far."""
    first = int(torch.randint(len(points), (), generator=generator))
    chosen, distance = [points[first]], (points - points[first]).square().sum(1)
    for _ in range(count - 1):
        point = _far(points, distance, 1, generator)[0]
        chosen.append(point)
        distance = torch.minimum(distance, (points - point).square().sum(1))
    return torch.stack(chosen)


def _far(points: Tensor, distance: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` points, drawn by their squared distance (n,); any where all are zero."""
    cumulative = distance.double().cumsum(0)  # torch.multinomial takes no more than 2^24 points
    total = cumulative[-1]
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    if not total > 0:
        return points[(draws * len(points)).long()]
    return points[torch.searchsorted(cumulative, draws * total, right=True).clamp_max(len(points) - 1)]
