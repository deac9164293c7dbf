"""The neighbour at a fixed offset from every token: by order on a line, by coordinates on a grid.

An offset is (later,) on a line and (down, right) on a grid. Padding, other segments and the outside hold no
neighbours. If the tokens are not a full grid, neighbours are found by comparing coordinates, in O(N^2).
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq, TokenSpec


def offsets(size: int, axes: int, causal: bool) -> list[tuple[int, ...]]:
    """Return the offsets of a centred neighbourhood: on a causal line the last `size`, on a causal grid none later."""
    if axes == 1 and causal:
        return [(offset,) for offset in range(1 - size, 1)]
    reach = size // 2
    steps = product(range(-reach, reach + 1), repeat=axes)
    # A grid is read row by row, so that tuples compare as the order of the tokens does.
    return [step for step in steps if not causal or step <= (0,) * axes]


def check_size(name: str, size: int, axes: int, causal: bool) -> None:
    """Raise ValueError if a centred neighbourhood would have no middle."""
    if size % 2 == 0 and not (causal and axes == 1):
        raise ValueError(f"token_mixer.{name}={size} must be odd to have a middle; use {size + 1}")


def cache_window(size: int, tokens: TokenSpec) -> int:
    """Return the number of past tokens that a causal neighbourhood can reach and a cache has to keep."""
    reach = size // 2
    if tokens.axes == 1:
        return size - 1
    if tokens.raster:
        return reach * tokens.grid[1] + reach  # `reach` rows above, and to the left
    return tokens.max_len


def full_grid(seq: Seq, axes: int) -> bool:
    """Return whether the tokens, in order, fill a grid of `axes` axes."""
    return seq.grid is not None and len(seq.grid) == axes and seq.num_prefix == 0


def at_offset(
    x: Tensor, seq: Seq, offset: tuple[int, ...], k_seq: Seq | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the neighbour at `offset` of each token, or zero: (B, N, C), and a mask of the existing ones: (B|1, N, 1).

    x: (B, M, C), the tokens of `k_seq`; the last N of them are the tokens of `seq`
    k_seq: None means `seq` itself
    causal: later tokens are no neighbours; needed for a grid that is not read row by row
    """
    k_seq = seq if k_seq is None else k_seq
    if k_seq.valid is not None:
        x = x.masked_fill(~k_seq.valid[..., None], 0.0)
    if len(offset) == 1:
        return _on_line(x, seq, offset[0], k_seq)
    if k_seq is seq and full_grid(seq, len(offset)) and seq.segment is None:
        return _on_grid(x, seq, offset)
    gap = k_seq.token_coords[:, None] - seq.token_coords[:, :, None]  # (B|1, N, M, A)
    neighbour = (gap - x.new_tensor(offset)).abs().amax(-1) < 0.5  # (B|1, N, M)
    if causal:
        neighbour = neighbour & (k_seq.index <= seq.index[:, None])
    if k_seq.valid is not None:
        neighbour = neighbour & k_seq.valid[:, None]
    if seq.segment is not None:
        assert k_seq.segment is not None
        neighbour = neighbour & (seq.segment[:, :, None] == k_seq.segment[:, None])
    return neighbour.to(x.dtype) @ x, neighbour.any(-1, keepdim=True)  # (B, N, C), (B|1, N, 1)


def _on_line(x: Tensor, seq: Seq, offset: int, k_seq: Seq) -> tuple[Tensor, Tensor]:
    size = len(seq)
    past = len(k_seq) - len(seq)
    before = max(0, -offset - past)  # zeros in front, if the offset reaches back beyond the cached tokens
    after = max(0, offset)

    def shift(values: Tensor) -> Tensor:
        values = F.pad(values, (0, 0, before, after))
        return values.narrow(1, before + past + offset, size)  # (B|1, N, C)

    valid = torch.ones_like(x[:1, :, :1]) if k_seq.valid is None else k_seq.valid[..., None].long()
    exists = shift(valid) > 0
    if seq.segment is not None:
        assert k_seq.segment is not None
        exists = exists & (shift(k_seq.segment[..., None]) == seq.segment[..., None])
    return shift(x) * exists, exists


def _on_grid(x: Tensor, seq: Seq, offset: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    assert seq.grid is not None
    grid = seq.grid
    border = (0, 0, *reversed([abs(move) for move in offset for _ in range(2)]))

    def shift(values: Tensor) -> Tensor:
        values = F.pad(values.unflatten(1, grid), border)
        for axis, (move, side) in enumerate(zip(offset, grid, strict=True)):
            values = values.narrow(1 + axis, abs(move) + move, side)
        return values.flatten(1, len(offset))  # (B|1, N, C)

    valid = torch.ones_like(x[:1, :, :1]) if seq.valid is None else seq.valid[..., None].to(x.dtype)
    return shift(x), shift(valid) > 0
