"""Sums of linear attention, over v and over one: for a whole row, weight by weight, and in order by chunks."""

from __future__ import annotations

import torch
from torch import Tensor


def everywhere(q: Tensor, turned_q: Tensor, k: Tensor, turned_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """All tokens see all: sums over v and over one, (B, H, N, K) and (B, H, N, 1)."""
    return turned_q @ (turned_k.transpose(-1, -2) @ v), q @ k.sum(2)[..., None]


def seen(q: Tensor, turned_q: Tensor, k: Tensor, turned_k: Tensor, v: Tensor, see: Tensor) -> tuple[Tensor, Tensor]:
    """The same over what each token sees, see (B|1, 1, N, M), weight by weight."""
    top = (turned_q @ turned_k.transpose(-1, -2) * see) @ v  # (B, H, N, K)
    return top, (q @ k.transpose(-1, -2) * see).sum(-1, keepdim=True)


def chunks(
    row: tuple[Tensor, ...], base: tuple[Tensor, Tensor] | None, segment: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """A causal row (q, turned q, k, turned k: (B, H, N, F); v: (B, H, N, K)) piece by piece.

    base (B, H, F, K), (B, H, F): the sums of what every token sees of before. segment (B, N): a token sees its own
    only, besides the base. Returns the sums over v and over one for each token, and those of the whole row.
    """
    size = row[0].shape[2]
    if base is None:
        q, v = row[0], row[4]
        base = (q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), q.new_zeros(*q.shape[:2], q.shape[3]))
    values, counts = (torch.zeros_like(each) for each in base)  # of the document that is being read
    tops, bottoms, last = [], [], None
    for start in range(0, size, chunk):
        piece = tuple(each[:, :, start : start + chunk] for each in row)
        q, turned_q, k, turned_k, v = piece
        see = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        top, bottom = turned_q @ values, q @ counts[..., None]  # what came before in the same document
        here = None if segment is None else segment[:, None, start : start + chunk, None]  # (B, 1, n, 1)
        if here is not None:
            see = see & (here == here.transpose(-1, -2))
            if last is not None:
                top, bottom = top * (here == last), bottom * (here == last)
        inner = seen(*piece, see)
        tops.append(top + inner[0] + turned_q @ base[0])
        bottoms.append(bottom + inner[1] + q @ base[1][..., None])
        if here is not None:
            end = here[:, :, -1:]  # (B, 1, 1, 1)
            if last is not None:
                values, counts = values * (end == last), counts * (end == last)[..., 0]
            k, turned_k, last = k * (here == end), turned_k * (here == end), end
        values = values + turned_k.transpose(-1, -2) @ v
        counts = counts + k.sum(2)
    return torch.cat(tops, 2), torch.cat(bottoms, 2), (base[0] + values, base[1] + counts)
