"""Attention written out, to test every fast path against. Slow, and exact in float64.

Source: Vaswani et al. 2017 (arXiv 1706.03762), eq. 1; Milakov and Gimelshein 2018, Online normalizer
calculation for softmax (arXiv 1805.02867), algorithm 3, for the chunked form.
Convention: a query that sees nothing gives zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq
from blockyard.ops.mask import Visibility, bias_table, table
from blockyard.ops.shaping import PLAIN, Shaping, capped


def scores(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    shaping: Shaping = PLAIN,
) -> Tensor:
    """Return the scores before the softmax, -inf at keys that a query does not see: (B, H, N, M), without a sink.

    q (B, H, N, K); k (B, H', M, K) with H' dividing H: head h reads keys h // (H / H').
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, M, K)
    raw = q @ k.transpose(-1, -2)  # (B, H, N, M)
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    raw = capped(raw * (1 / math.sqrt(q.shape[-1]) if scale is None else scale), shaping.cap)
    bias, sees = bias_table(seq, k_seq, q.shape[1]), table(seq, k_seq, visibility)
    if bias is not None:
        raw = raw + bias
    if shaping.forget is not None:
        raw = raw - (shaping.forget.q[..., :, None] - shaping.forget.k[..., None, :]).abs().to(raw.dtype)
    if sees is None:
        return raw
    return raw.masked_fill(~sees, float("-inf"))


def weights(
    q: Tensor,
    k: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    shaping: Shaping = PLAIN,
) -> Tensor:
    """Return attention weights (B, H, N, M), all zero for a query that sees nothing. Used for attention maps too."""
    raw = scores(q, k, seq, k_seq, visibility, scale, shaping)
    sink = shaping.logits(raw)  # (H, 1, 1)
    if sink is None:
        return normalised(raw)
    return normalised(torch.cat([raw, sink.expand(*raw.shape[:-1], 1)], dim=-1))[..., :-1]


def normalised(raw: Tensor) -> Tensor:
    """Return the softmax of scores (B, H, N, M) over the last axis, all zero where every score is -inf."""
    top = raw.amax(-1, keepdim=True)  # (B, H, N, 1)
    exponentials = torch.exp(raw - top.masked_fill(top == float("-inf"), 0.0))
    total = exponentials.sum(-1, keepdim=True)  # (B, H, N, 1)
    return exponentials / total.masked_fill(total == 0, 1.0)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    dropout: float = 0.0,
    shaping: Shaping = PLAIN,
) -> Tensor:
    """softmax(Q K^T scale + bias) V, each step a line: (B, H, N, values' width).

    dropout: rate on the weights. In half precision the softmax is in float32.
    """
    seen = weights(q, k, seq, k_seq, visibility, scale, shaping).to(v.dtype)  # (B, H, N, M)
    seen = F.dropout(seen, dropout) if dropout else seen
    return seen @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None = None,
    chunk: int = 3,
) -> Tensor:
    """The same, over `chunk` keys at a time with a running maximum and sum: (B, H, N, K)."""
    raw = scores(q, k, seq, k_seq, visibility, scale)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # (B, H, M, K)
    top = raw.new_full((*raw.shape[:3], 1), float("-inf"))
    total = raw.new_zeros(top.shape)
    out = raw.new_zeros((*raw.shape[:3], v.shape[-1]))
    for start in range(0, raw.shape[-1], chunk):
        part = raw[..., start : start + chunk]  # (B, H, N, chunk)
        new_top = torch.maximum(top, part.amax(-1, keepdim=True))
        shift = new_top.masked_fill(new_top == float("-inf"), 0.0)
        rescale = torch.exp(top - shift)
        exponentials = torch.exp(part - shift)
        total = total * rescale + exponentials.sum(-1, keepdim=True)
        out = out * rescale + exponentials @ v[..., start : start + chunk, :]
        top = new_top
    return out / total.masked_fill(total == 0, 1.0)
