"""Attention, the one way in: chooses the kernel, and says which it chose.

    plain, causal, one query after a cache      scaled_dot_product_attention without a mask: flash
    strictly causal                             the same over all queries but the first, all keys but the last
    bias, padding, segments, window, on CUDA    FlexAttention
    the same elsewhere, or with dropout         scaled_dot_product_attention with a mask

Mixers come here with facts (`Seq`), never with masks. A query that sees nothing gives zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
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
    window: int | None = None,
    strict: bool = False,
) -> Tensor:
    """Softmax(Q K^T scale + bias) V over what each query may see: (B, H, N, values' width).

    q (B, H, N, K) of `seq`, already rotated; k (B, H', M, K), v (B, H', M, any width) of `k_seq`, with H'
    dividing H. `scale` None means 1 / sqrt(K). `dropout` is applied to the weights: pass 0 outside training.
    `window`: a query sees keys whose index is less than that far from its own, and the prefix; a prefix
    token sees all. `strict`: a query does not see the key of its own index. Both are for rows that look at
    themselves (or at themselves in a cache), not at a memory.
    """
    # A norm on queries and keys may have left autocast's type; values tell which one is in force.
    q, k = q.to(v.dtype), k.to(v.dtype)
    if maps.listening():
        maps.note(q, k, v, seq, k_seq, causal, scale, window, strict)
    width = v.shape[-1]
    if width != k.shape[-1]:
        # Fused kernels want one width; zeros add nothing to a score, and what they add to values is cut off.
        scale = 1 / math.sqrt(k.shape[-1]) if scale is None else scale
        q, k, v = (F.pad(x, (0, max(width, k.shape[-1]) - x.shape[-1])) for x in (q, k, v))
    if strict and mask.shifts(seq, k_seq, causal, window):
        return _shifted(q, k, v, k_seq is seq, dropout, scale)[..., :width]
    why = mask.reasons(seq, k_seq, causal, window, strict)
    if not why:
        return _sdpa(q, k, v, None, causal and k_seq is seq, dropout, scale, why)[..., :width]
    facts = (causal, window, strict)
    refused = refusal(q.device.type, q.dtype, q.shape[-1], dropout)
    if refused is None:
        kernel.note("flex", why)
        blocks = _once(("blocks", *facts), seq, k_seq, lambda: block_mask(seq, k_seq, causal, len(q), *facts[1:]))
        return flex(q, k, v, seq, k_seq, causal, scale, blocks, window=window, strict=strict)[..., :width]
    heads = q.shape[1]
    key = ("dense", *facts, heads)
    allowed, blind = _once(key, seq, k_seq, lambda: mask.dense(seq, k_seq, causal, heads, window, strict))
    if allowed.is_floating_point():
        allowed = allowed.to(q.dtype)
    out = _sdpa(q, k, v, allowed, False, dropout, scale, [*why, refused])[..., :width]
    return out if blind is None else out.masked_fill(blind, 0.0)


def prepare(
    seq: Seq,
    causal: bool,
    heads: int,
    head_dim: int,
    like: Tensor,
    dropout: float = 0.0,
    *,
    window: int | None = None,
    strict: bool = False,
    k_seq: Seq | None = None,
) -> None:
    """Work the masks out once, for all layers of one forward pass over `seq`.

    `like` (B, N, D) tells batch, device and type; `head_dim` is the larger width of keys and values. Not
    needed for a right answer: `attend` makes what it does not find. A compiled block cannot keep what it made.
    `k_seq` are the keys' facts where they are not `seq` itself but kept in its memo under their own "name".
    """
    k_seq = seq if k_seq is None else k_seq
    if not mask.reasons(seq, k_seq, causal, window, strict) or (strict and mask.shifts(seq, k_seq, causal, window)):
        return
    facts = (causal, window, strict)
    if refusal(like.device.type, like.dtype, head_dim, dropout) is None:
        _once(("blocks", *facts), seq, k_seq, lambda: block_mask(seq, k_seq, causal, len(like), *facts[1:]))
    else:
        _once(("dense", *facts, heads), seq, k_seq, lambda: mask.dense(seq, k_seq, causal, heads, window, strict))


def _once(key: tuple[Any, ...], seq: Seq, k_seq: Seq, make: Any) -> Any:
    """What `make` gives, kept with the queries' facts where the keys' are the same in all layers."""
    name = "self" if k_seq is seq else k_seq.memo.get("name")
    if name is None or (k_seq is not seq and seq.memo.get(name) is not k_seq):
        return make()
    key = (*key, name)
    if key in seq.memo:
        return seq.memo[key]
    made = make()
    if not torch.compiler.is_compiling():
        seq.memo[key] = made
    return made


def _shifted(q: Tensor, k: Tensor, v: Tensor, whole: bool, dropout: float, scale: float | None) -> Tensor:
    """Strictly causal without a mask: keys from the last but one back, and zero where no key is left."""
    if k.shape[2] < 2:
        kernel.note("none", ["a token alone sees nothing"])
        return torch.zeros_like(q)
    if not whole:
        return _sdpa(q, k[:, :, :-1], v[:, :, :-1], None, False, dropout, scale, [])
    rest = _sdpa(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], None, True, dropout, scale, [])
    return F.pad(rest, (0, 0, 1, 0))  # (B, H, N, K)


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
