"""The neighbour at a fixed step from every token: on a line by order, on a grid by place.

A step is (later,) on a line and (down, right) on a grid. Padding, other segments and the outside are no
neighbours. Where tokens are no full grid, neighbours are found by comparing places, in O(N^2).
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq


def steps(size: int, axes: int, causal: bool) -> list[tuple[int, ...]]:
    """The steps of a neighbourhood: centred, on a causal line the last `size`, on a causal grid none that is later."""
    if axes == 1 and causal:
        return [(step,) for step in range(1 - size, 1)]
    reach = size // 2
    found = product(range(-reach, reach + 1), repeat=axes)
    return [step for step in found if not causal or step <= (0,) * axes]


def check_size(name: str, size: int, axes: int, causal: bool) -> None:
    """Raises ValueError where a centred neighbourhood has no middle."""
    if size % 2 == 0 and not (causal and axes == 1):
        raise ValueError(f"token_mixer.{name}={size} has no middle; use an odd number such as {size + 1}")


def window(size: int, axes: int, grid: tuple[int, ...]) -> int:
    """How many of the last tokens a causal neighbourhood can reach: those a cache has to keep."""
    reach = size // 2
    return size - 1 if axes == 1 else reach * grid[1] + reach


def full_grid(seq: Seq, axes: int) -> bool:
    """Whether tokens can be laid out as they lie."""
    return seq.grid is not None and len(seq.grid) == axes and seq.num_prefix == 0


def neighbour(x: Tensor, seq: Seq, step: tuple[int, ...], k_seq: Seq | None = None) -> tuple[Tensor, Tensor]:
    """What lies `step` from each token of `seq`, zero where nothing does: (B, N, C), and whether: (B|1, N, 1).

    x (B, M, C) are the tokens of `k_seq`, of which those of `seq` are the last; None is `seq` itself.
    """
    k_seq = seq if k_seq is None else k_seq
    if k_seq.valid is not None:
        x = x.masked_fill(~k_seq.valid[..., None], 0.0)
    if len(step) == 1:
        return _on_a_line(x, seq, step[0], k_seq)
    if k_seq is seq and full_grid(seq, len(step)) and seq.segment is None:
        return _on_a_grid(x, seq, step)
    see = ((k_seq.coords[:, None] - seq.coords[:, :, None]) - x.new_tensor(step)).abs().amax(-1) < 0.5  # (B|1, N, M)
    if k_seq.valid is not None:
        see = see & k_seq.valid[:, None]
    if seq.segment is not None:
        see = see & (seq.segment[:, :, None] == k_seq.segment[:, None])
    return see.to(x.dtype) @ x, see.any(-1, keepdim=True)  # (B, N, C), (B|1, N, 1)


def _on_a_line(x: Tensor, seq: Seq, step: int, k_seq: Seq) -> tuple[Tensor, Tensor]:
    size, past = len(seq), len(k_seq) - len(seq)
    back, ahead = max(0, -step - past), max(0, step)

    def moved(row: Tensor) -> Tensor:
        row = F.pad(row, (0, 0, back, ahead))
        return row.narrow(1, back + past + step, size)  # (B|1, N, C)

    real = moved(torch.ones_like(x[:1, :, :1])) > 0 if k_seq.valid is None else moved(k_seq.valid[..., None].long()) > 0
    if seq.segment is not None:
        real = real & (moved(k_seq.segment[..., None]) == seq.segment[..., None])
    return moved(x) * real, real


def _on_a_grid(x: Tensor, seq: Seq, step: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    edge = [abs(move) for move in step for _ in range(2)]
    border = (0, 0, *reversed(edge))

    def moved(row: Tensor) -> Tensor:
        row = F.pad(row.unflatten(1, seq.grid), border)
        for axis, (move, side) in enumerate(zip(step, seq.grid, strict=True)):
            row = row.narrow(1 + axis, abs(move) + move, side)
        return row.flatten(1, len(step))  # (B|1, N, C)

    real = torch.ones_like(x[:1, :, :1]) if seq.valid is None else seq.valid[..., None].to(x.dtype)
    return moved(x), moved(real) > 0
