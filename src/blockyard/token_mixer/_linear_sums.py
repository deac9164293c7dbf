"""The two sums of linear attention, numerator and denominator: over all tokens, masked, or causally in chunks.

Arguments are queries and keys before and after rotation, and values. The denominator takes the unrotated ones.
"""

from __future__ import annotations

import torch
from torch import Tensor


def full_sums(q: Tensor, q_rotated: Tensor, k: Tensor, k_rotated: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Every query reads every key: numerator (B, H, N, K) and denominator (B, H, N, 1)."""
    return q_rotated @ (k_rotated.transpose(-1, -2) @ v), q @ k.sum(2)[..., None]


def masked_sums(
    q: Tensor, q_rotated: Tensor, k: Tensor, k_rotated: Tensor, v: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """The same over what each query may read, visible (B|1, 1, N, M), with all N M weights computed."""
    top = (q_rotated @ k_rotated.transpose(-1, -2) * visible) @ v  # (B, H, N, K)
    return top, (q @ k.transpose(-1, -2) * visible).sum(-1, keepdim=True)


def chunked_sums(
    parts: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    base: tuple[Tensor, Tensor] | None,
    segment: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Causal sums over `parts` (q, rotated q, k, rotated k: (B, H, N, F); v: (B, H, N, K)), `chunk` tokens at a time.

    base (B, H, F, K), (B, H, F): sums over earlier tokens that every token reads. segment (B, N): a token reads
    only its own segment, besides the base. Returns numerator, denominator, and the sums over the whole sequence.
    """
    size = parts[0].shape[2]
    if base is None:
        q, v = parts[0], parts[4]
        base = (q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), q.new_zeros(*q.shape[:2], q.shape[3]))
    values, counts = (torch.zeros_like(each) for each in base)  # of the current document
    tops, bottoms = [], []
    last: Tensor | None = None
    for start in range(0, size, chunk):
        q, q_rotated, k, k_rotated, v = (each[:, :, start : start + chunk] for each in parts)
        visible = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        top, bottom = q_rotated @ values, q @ counts[..., None]  # earlier chunks of the same document
        ids = None if segment is None else segment[:, None, start : start + chunk, None]  # (B, 1, n, 1)
        if ids is not None:
            visible = visible & (ids == ids.transpose(-1, -2))
            if last is not None:
                top, bottom = top * (ids == last), bottom * (ids == last)
        inner = masked_sums(q, q_rotated, k, k_rotated, v, visible)
        tops.append(top + inner[0] + q_rotated @ base[0])
        bottoms.append(bottom + inner[1] + q @ base[1][..., None])
        if ids is not None:
            end = ids[:, :, -1:]  # (B, 1, 1, 1)
            if last is not None:
                values, counts = values * (end == last), counts * (end == last)[..., 0]
            k, k_rotated, last = k * (ids == end), k_rotated * (ids == end), end
        values = values + k_rotated.transpose(-1, -2) @ v
        counts = counts + k.sum(2)
    return torch.cat(tops, 2), torch.cat(bottoms, 2), (base[0] + values, base[1] + counts)
