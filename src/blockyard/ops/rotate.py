"""Rotation of queries and keys by the model's position scheme, around the prefix."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops.mask import scheme


def rotate(q: Tensor, k: Tensor, seq: Seq, k_seq: Seq) -> tuple[Tensor, Tensor]:
    """Queries (B, H, N, K) of `seq` and keys (B, H', M, K) of `k_seq`, rotated where a scheme does so.

    Called before keys enter a cache. Prefix tokens come back untouched. A memory that does not
    live in the coordinates of the model's scheme is not rotated, and neither are its queries.
    """
    position = scheme(seq, k_seq, "rotate")
    if position is None:
        return q, k
    p, m = seq.num_prefix, k_seq.num_prefix
    q_coords = seq.coords[:, p:]
    k_coords = q_coords if k_seq is seq else k_seq.coords[:, m:]
    q_turned, k_turned = position.rotate(q[:, :, p:], k[:, :, m:], q_coords, k_coords)
    if p:
        q_turned = torch.cat([q[:, :, :p], q_turned], dim=2)  # (B, H, N, K)
    if m:
        k_turned = torch.cat([k[:, :, :m], k_turned], dim=2)  # (B, H', M, K)
    return q_turned, k_turned
