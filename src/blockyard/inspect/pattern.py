"""A token-mixing picture in words: band, triangle, window, full."""

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
        return f"{there.float().mean():.0%} of all pairs"
    row, column = there.nonzero().unbind(1)
    back, ahead = int((row - column).max()), int((column - row).max())
    count = len(there)
    if back <= 0 and ahead <= 0:
        return "itself"
    if there.tril().sum() == there.sum() == count * (count + 1) // 2:
        return "triangle: itself and all before"
    if there.tril(-1).sum() == there.sum() == count * (count - 1) // 2:
        return "strict triangle: all before"
    if grid is not None and len(grid) == 2 and prefix == 0 and grid[0] * grid[1] == count:
        down, across = (column // grid[1] - row // grid[1]).abs(), (column % grid[1] - row % grid[1]).abs()
        reach = int(down.max()), int(across.max())
        if reach[0] < grid[0] - 1 or reach[1] < grid[1] - 1:
            return f"window of {2 * reach[0] + 1} x {2 * reach[1] + 1}"
    elif back < count - 1 or ahead < count - 1:
        whole = "" if ahead >= 0 and back >= 0 else "strictly "
        causal = "before and itself" if ahead <= 0 else f"{back} before to {ahead} after"
        return (
            f"band: {whole}{back} before and itself"
            if ahead <= 0 and back < count - 1
            else (f"{there.float().mean():.0%} of all pairs, none after" if ahead <= 0 else f"band: {causal}")
        )
    return f"{torch.mean(there.float()):.0%} of all pairs"
