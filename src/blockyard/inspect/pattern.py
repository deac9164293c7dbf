"""A token-mixing picture in words: band, triangle, window, all."""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = 1e-5  # of the largest entry; what float32 leaves of an exact zero is less


def pattern(norms: Tensor, grid: tuple[int, ...] | None = None, prefix: int = 0) -> str:
    """What a table (N, M) of norms looks like, its entries below 1e-5 of the largest taken for nothing."""
    there = norms > norms.max() * NOTHING
    if not there.any():
        return "nothing"
    if there.all():
        return "all"
    if there.shape[0] != there.shape[1]:
        return _share(there)
    row, column = there.nonzero().unbind(1)
    back, ahead, count = int((row - column).max()), int((column - row).max()), len(there)
    if back == ahead == 0:
        return "itself alone"
    if torch.equal(there, torch.ones_like(there).tril()):
        return "triangle: itself and all before"
    if torch.equal(there, torch.ones_like(there).tril(-1)):
        return "strict triangle: all before"
    if grid is not None and len(grid) == 2 and prefix == 0 and grid[0] * grid[1] == count:
        down = int((column // grid[1] - row // grid[1]).abs().max())
        across = int((column % grid[1] - row % grid[1]).abs().max())
        if down < grid[0] - 1 or across < grid[1] - 1:
            return f"window of {2 * down + 1} x {2 * across + 1}"
    elif back < count - 1 and ahead < count - 1:
        reach = " and itself" if ahead == 0 else f" to {ahead} after" if ahead > 0 else ""
        return f"band: {back} before{reach}"
    return _share(there)


def _share(there: Tensor) -> str:
    return f"{float(there.float().mean()):.0%} of all pairs"
