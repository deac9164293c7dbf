"""Rotation of queries and keys by the model's position scheme; prefix tokens are left out."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops.mask import scheme


def rotate(q: Tensor, k: Tensor, seq: Seq, k_seq: Seq) -> tuple[Tensor, Tensor]:
    """Return queries (B, H, N, K) of `seq` and keys (B, H', M, K) of `k_seq`, rotated if the scheme rotates.

    Call it before keys enter a cache. Prefix tokens stay unchanged. In cross-attention to a memory without coordinates
    of the scheme, neither keys nor queries are rotated.
    """
    position = scheme(seq, k_seq, "rotate")
    if position is None:
        return q, k
    p, m = seq.num_prefix, k_seq.num_prefix
    q_coords = seq.coords[:, p:]
    k_coords = q_coords if k_seq is seq else k_seq.coords[:, m:]
    q_rotated, k_rotated = position.rotate(q[:, :, p:], k[:, :, m:], q_coords, k_coords)
    if p:
        q_rotated = torch.cat([q[:, :, :p], q_rotated], dim=2)  # (B, H, N, K)
    if m:
        k_rotated = torch.cat([k[:, :, :m], k_rotated], dim=2)  # (B, H', M, K)
    return q_rotated, k_rotated
