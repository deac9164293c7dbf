"""Attention, the one way in: chooses the kernel, and says which it chose.

    plain, causal, one query after a cache      scaled_dot_product_attention without a mask: flash
    bias, padding, segments, on CUDA            FlexAttention
    the same elsewhere, or with dropout         scaled_dot_product_attention with a mask

Mixers come here with facts (`Seq`), never with masks. A query that sees nothing gives zero.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Seq
from blockyard.ops import kernel, maps, mask
from blockyard.ops.flex import block_mask, flex, refusal


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    causal: bool,
    *,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Softmax(Q K^T scale + bias) V over what each query may see: (B, H, N, K).

    q (B, H, N, K) of `seq`, already rotated; k, v (B, H', M, K) of `k_seq`, with H' dividing H.
    `scale` None means 1 / sqrt(K). `dropout` is applied to the weights: pass 0 outside training.
    """
    # A norm on queries and keys may have left autocast's type; values tell which one is in force.
    q, k = q.to(v.dtype), k.to(v.dtype)
    if maps.listening():
        maps.note(q, k, v, seq, k_seq, causal, scale)
    why = mask.reasons(seq, k_seq, causal)
    if not why:
        return _sdpa(q, k, v, None, causal and k_seq is seq, dropout, scale, why)
    refused = refusal(q.device.type, q.dtype, q.shape[-1], dropout)
    if refused is None:
        kernel.note("flex", why)
        blocks = seq.memo.get(("blocks", causal)) if k_seq is seq else None
        return flex(q, k, v, seq, k_seq, causal, scale, blocks)
    made = seq.memo.get(("dense", causal, q.shape[1])) if k_seq is seq else None
    allowed, blind = made if made is not None else mask.dense(seq, k_seq, causal, q.shape[1])
    if allowed.is_floating_point():
        allowed = allowed.to(q.dtype)
    out = _sdpa(q, k, v, allowed, False, dropout, scale, [*why, refused])
    return out if blind is None else out.masked_fill(blind, 0.0)


def prepare(seq: Seq, causal: bool, heads: int, head_dim: int, like: Tensor, dropout: float = 0.0) -> None:
    """Work the masks out once, for all layers of one forward pass over `seq`.

    `like` (B, N, D) tells batch, device and type. Not needed for a right answer: `attend` makes what
    it does not find.
    """
    if not mask.reasons(seq, seq, causal):
        return
    if refusal(like.device.type, like.dtype, head_dim, dropout) is None:
        seq.memo["blocks", causal] = block_mask(seq, seq, causal, like.shape[0])
    else:
        seq.memo["dense", causal, heads] = mask.dense(seq, seq, causal, heads)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor | None,
    is_causal: bool,
    dropout: float,
    scale: float | None,
    why: list[str],
) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    if grouped and not kernel.takes_groups(q, allowed):
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)  # (B, H, M, K)
        grouped = False
    settings: dict[str, Any] = {
        "attn_mask": allowed,
        "dropout_p": dropout,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": grouped,
    }
    if kernel.recording():
        kernel.note(*kernel.taken(q, k, v, why, settings))
    return F.scaled_dot_product_attention(q, k, v, **settings)
