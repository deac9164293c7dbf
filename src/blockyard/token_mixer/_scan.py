"""h_t = a_t h_(t-1) + b_t over a whole sequence by an associative scan, in O(log N) steps instead of N.

Source: Blelloch 1990, Prefix Sums and Their Applications; the doubling form of Hillis and Steele 1986,
Data Parallel Algorithms. Step (a, b) followed by step (a', b') is the step (a a', a' b + b').
"""

from __future__ import annotations

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Every state, starting from a zero state: a, b (B, N, C) -> (B, N, C)."""
    reach = 1
    while reach < a.shape[1]:
        b = torch.cat([b[:, :reach], b[:, reach:] + a[:, reach:] * b[:, :-reach]], dim=1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], dim=1)
        reach *= 2
    return b


def reverse(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (B, N, C) with the real tokens of each sequence in reverse order and padding still at the end.

    Applied twice, it gives x back.
    """
    if valid is None:
        return x.flip(1)
    count = valid.sum(1, keepdim=True)  # (B, 1)
    index = torch.arange(x.shape[1], device=x.device)[None]  # (1, N)
    order = torch.where(index < count, count - 1 - index, index)  # (B, N)
    return x.gather(1, order[..., None].expand_as(x))
