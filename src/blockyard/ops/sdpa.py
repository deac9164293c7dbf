"""torch's scaled_dot_product_attention, with the kernel that it takes on record."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.ops import kernel
from blockyard.ops.full_precision import full_precision


def shifted(q: Tensor, k: Tensor, v: Tensor, whole: bool, dropout: float, scale: float | None) -> Tensor:
    """Strictly causal attention without a mask: all keys but the last, and zero for the query that sees none.

    whole: queries and keys are those of one sequence; otherwise one query follows a cache
    """
    if k.shape[2] < 2:
        kernel.note("none", ["the only token sees nothing"])
        return torch.zeros_like(q)
    if not whole:
        return sdpa(q, k[:, :, :-1], v[:, :, :-1], None, False, dropout, scale, [])
    rest = sdpa(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], None, True, dropout, scale, [])
    return F.pad(rest, (0, 0, 1, 0))  # (B, H, N, K)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    is_causal: bool,
    dropout: float,
    scale: float | None,
    reasons: list[str],
) -> Tensor:
    """torch's `scaled_dot_product_attention`; notes the kernel it takes and the reasons against a faster one."""
    grouped = q.shape[1] != k.shape[1]
    if grouped and not kernel.takes_groups(q, allowed):
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)  # (B, H, M, K)
        grouped = False
    settings: dict[str, Any] = {
        "attn_mask": allowed,
        "dropout_p": dropout,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": grouped,
    }
    if kernel.recording():
        kernel.note(*kernel.chosen(q, k, v, reasons, settings))
    if kernel.faster_in_float32(q, k, allowed):
        with full_precision(q):
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **settings).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, **settings)
