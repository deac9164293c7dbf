"""A token-mixing picture in words: band, triangle, window, all, and where one of them only fades."""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = 1e-5  # of the largest entry: so little cannot be seen
ZERO = 1e-12  # of the largest entry; what float64 leaves of an exact zero is less
EDGE = 1e-2  # of the largest entry: what falls from there to nothing at one step does not fade


def pattern(norms: Tensor, grid: tuple[int, ...] | None = None, prefix: int = 0) -> str:
    """What a table (N, M) of norms looks like, its entries below 1e-5 of the largest taken for nothing.

    A band and a window have an edge: beyond it are zeros, or just inside of it is much. Without one the table is as
    wide as its row and fades, and so many tokens are only as far as it can be seen.
    """
    norms = norms / norms.max().clamp_min(torch.finfo(norms.dtype).tiny)
    there = norms > NOTHING
    if not there.any():
        return "nothing"
    if there.all():
        return "all"
    if there.shape[0] != there.shape[1]:
        return _share(there)
    count, place = len(there), torch.arange(len(there))
    apart = place[:, None] - place  # (N, N), how far before its output an input lies
    back, ahead = int(apart[there].max()), -int(apart[there].min())
    if torch.equal(there, torch.ones_like(there).tril()):
        return "triangle: itself and all before"
    if torch.equal(there, torch.ones_like(there).tril(-1)):
        return "strict triangle: all before"
    if back == ahead == 0 and _sharp(norms, apart != 0, apart == 0):
        return "itself alone"
    whole = "all" if ahead > 0 else "triangle" if ahead == 0 else "strict triangle"
    if grid is not None and len(grid) == 2 and prefix == 0 and grid[0] * grid[1] == count:
        rows, columns = ((i[:, None] - i).abs() for i in (place // grid[1], place % grid[1]))  # 2 x (N, N)
        down, across = int(rows[there].max()), int(columns[there].max())
        if down < grid[0] - 1 or across < grid[1] - 1:
            if _sharp(norms, rows > down, rows == down) and _sharp(norms, columns > across, columns == across):
                return f"window of {2 * down + 1} x {2 * across + 1}"
            return f"{whole}, fading: under 1e-5 beyond {down} rows and {across} columns"
    elif back < count - 1 and ahead < count - 1:
        if _sharp(norms, apart > back, apart == back) and _sharp(norms, apart < -ahead, apart == -ahead):
            reach = " and itself" if ahead == 0 else f" to {ahead} after" if ahead > 0 else ""
            return f"band: {back} before{reach}"
        after = f" before and {ahead} after" if ahead > 0 else ""
        return f"{whole}, fading: under 1e-5 beyond {back}{after}"
    if ahead <= 0:
        part = (~there[apart >= -ahead]).float().mean()
        return f"{whole}, under 1e-5 in {float(part):.0%} of it"
    return _share(there)


def _sharp(norms: Tensor, beyond: Tensor, edge: Tensor) -> bool:
    """Whether what lies `beyond` is zero, or what lies at the `edge`, just inside of it, is much."""
    outside, inside = norms[beyond], norms[edge]
    return not outside.numel() or bool(outside.max() <= ZERO) or bool(inside.max() >= EDGE)


def _share(there: Tensor) -> str:
    return f"{float(there.float().mean()):.0%} of all pairs"
