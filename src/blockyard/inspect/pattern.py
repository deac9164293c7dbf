"""The name of a token-mixing pattern: causal, band, window, all, and where one of them only fades."""

from __future__ import annotations

import torch
from torch import Tensor

VISIBLE = 1e-5  # relative to the largest entry: smaller entries count as zero
ZERO = 1e-12  # relative to the largest entry: float64 leaves less of an exact zero
EDGE = 1e-2  # relative to the largest entry: a drop from here to zero in one step is an edge


def pattern(norms: Tensor, grid: tuple[int, ...] | None = None, prefix: int = 0) -> str:
    """Returns the name of the pattern of a table (N, M) of norms; entries below 1e-5 of the largest count as zero.

    A band and a window have an edge: entries beyond it are exactly zero, or entries just inside of it are large. A
    table without an edge reaches over the whole sequence and fades; the stated distance is only where it falls below
    1e-5.
    """
    norms = norms / norms.max().clamp_min(torch.finfo(norms.dtype).tiny)
    nonzero = norms > VISIBLE
    if not nonzero.any():
        return "nothing"
    if nonzero.all():
        return "all"
    if nonzero.shape[0] != nonzero.shape[1]:
        return _share(nonzero)
    count, index = len(nonzero), torch.arange(len(nonzero))
    distance = index[:, None] - index  # (N, N), from an output back to an input
    back, ahead = int(distance[nonzero].max()), -int(distance[nonzero].min())
    if torch.equal(nonzero, torch.ones_like(nonzero).tril()):
        return "causal: itself and all previous tokens"
    if torch.equal(nonzero, torch.ones_like(nonzero).tril(-1)):
        return "strictly causal: all previous tokens"
    if back == ahead == 0 and _has_edge(norms, distance != 0, distance == 0):
        return "itself only"
    extent = "all" if ahead > 0 else "causal" if ahead == 0 else "strictly causal"
    if grid is not None and len(grid) == 2 and prefix == 0 and grid[0] * grid[1] == count:
        rows, columns = ((i[:, None] - i).abs() for i in (index // grid[1], index % grid[1]))  # 2 x (N, N)
        down, across = int(rows[nonzero].max()), int(columns[nonzero].max())
        if down < grid[0] - 1 or across < grid[1] - 1:
            if _has_edge(norms, rows > down, rows == down) and _has_edge(norms, columns > across, columns == across):
                return f"window of {2 * down + 1} x {2 * across + 1}"
            return f"{extent}, fading: below 1e-5 beyond {down} rows and {across} columns"
    elif back < count - 1 and ahead < count - 1:
        ends_back = _has_edge(norms, distance > back, distance == back)
        if ends_back and _has_edge(norms, distance < -ahead, distance == -ahead):
            reach = " and itself" if ahead == 0 else f" to {ahead} after" if ahead > 0 else ""
            return f"band: {back} before{reach}"
        after = f" before and {ahead} after" if ahead > 0 else ""
        return f"{extent}, fading: below 1e-5 beyond {back}{after}"
    if ahead <= 0:
        hidden = (~nonzero[distance >= -ahead]).float().mean()
        return f"{extent}, below 1e-5 in {float(hidden):.0%} of its pairs"
    return _share(nonzero)


def _has_edge(norms: Tensor, beyond: Tensor, edge: Tensor) -> bool:
    """Whether entries `beyond` are zero, or those at the `edge`, just inside of it, are large."""
    outside, inside = norms[beyond], norms[edge]
    return not outside.numel() or bool(outside.max() <= ZERO) or bool(inside.max() >= EDGE)


def _share(nonzero: Tensor) -> str:
    return f"{float(nonzero.float().mean()):.0%} of all pairs"
