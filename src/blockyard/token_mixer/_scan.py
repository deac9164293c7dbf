"""h_t = a_t h_(t-1) + b_t for a whole row: by an associative scan, in O(log N) steps instead of N.

Source: Blelloch 1990, Prefix Sums and Their Applications; the doubling form of Hillis and Steele 1986,
Data Parallel Algorithms. (a, b) then (a', b') is (a a', a' b + b').
"""

from __future__ import annotations

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor) -> Tensor:
    """All states, h before the row being zero: a, b (B, N, C) -> (B, N, C)."""
    reach = 1
    while reach < a.shape[1]:
        b = torch.cat([b[:, :reach], b[:, reach:] + a[:, reach:] * b[:, :-reach]], dim=1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], dim=1)
        reach *= 2
    return b


def backwards(x: Tensor, valid: Tensor | None) -> Tensor:
    """Each row (B, N, C) from its last real token to its first; padding stays behind. Its own inverse."""
    if valid is None:
        return x.flip(1)
    count = valid.sum(1, keepdim=True)  # (B, 1)
    place = torch.arange(x.shape[1], device=x.device)[None]  # (1, N)
    order = torch.where(place < count, count - 1 - place, place)  # (B, N)
    return x.gather(1, order[..., None].expand_as(x))
