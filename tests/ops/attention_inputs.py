"""Queries, keys, values and sequences that the tests of attention share."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Position, Seq
from tests.support.helpers import context, factory

N, PREFIX = 7, 2
FACTS = ["plain", "padded", "packed", "both"]


def qkv(dtype: torch.dtype, kv_heads: int = 4, n: int = N, m: int = N, width: int = 8) -> list[Tensor]:
    """Random queries (2, 4, n, K), keys and values (2, kv_heads, m, K)."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, n, width), (2, kv_heads, m, width), (2, kv_heads, m, width)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def facts(kind: str, position: Position | None = None, prefix: int = 0, n: int = N) -> Seq:
    """Two sequences of `n` tokens, the second padded (or empty where there is no prefix) or packed."""
    valid = segment = None
    if kind in ("padded", "both"):
        valid = torch.arange(n) < torch.tensor([[n - 2], [prefix]])
    if kind in ("packed", "both"):
        segment = torch.tensor([[0] * (n - 3) + [1] * 3, [0] * 4 + [1] * (n - 4)])
        segment[:, :prefix] = -1
    coords = torch.arange(n, dtype=torch.float64).sub(prefix).clamp(min=0)[None, :, None]
    return Seq(torch.arange(n), coords, valid, segment, num_prefix=prefix, position=position)


def scheme(name: str) -> Position | None:
    """A position scheme, or None."""
    return None if name == "no" else factory("position", name)(context())
