"""Attention: the one function that every softmax attention calls. It chooses the kernel and records the choice.

    plain, causal, one query after a cache      scaled_dot_product_attention without a mask: flash
    strictly causal                             the same without the first query and the last key
    bias, padding, segments, window, on CUDA    FlexAttention, from 2,048 tokens on
    the same elsewhere, or with dropout         scaled_dot_product_attention with a mask
    scores that are capped or forget            FlexAttention as above, the formula elsewhere
    a sink                                      as without: it is one more key

That is `trainer.attention=auto`; another name takes one kernel for all calls (`ops.kernel`).

Mixers pass facts (`Seq`) and a `Visibility`, never masks. The output of a query that sees nothing is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Position, Seq
from blockyard.ops import kernel, maps, mask, online, reference, ring
from blockyard.ops.autocast import full_precision
from blockyard.ops.flex import FEWEST, block_mask, flex, not_worth_it, refusal, refusal_of_scheme
from blockyard.ops.mask import Visibility
from blockyard.ops.shaping import PLAIN, Shaping, with_sink_key

Mask = TypeVar("Mask")


def shifted(
    q: Tensor, k: Tensor, v: Tensor, whole: bool, dropout: float, scale: float | None, shaping: Shaping = PLAIN
) -> Tensor:
    """Strictly causal attention without a mask: all keys but the last, and zero for the query that sees none.

    whole: queries and keys are of one whole sequence; otherwise one query follows a cache
    """
    if k.shape[2] < 2:
        kernel.note("none", ["the only token sees nothing"])
        return torch.zeros_like(q)
    if not whole:
        return sdpa(q, k[:, :, :-1], v[:, :, :-1], None, False, dropout, scale, [], shaping)
    rest = sdpa(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1], None, True, dropout, scale, [], shaping)
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
    shaping: Shaping = PLAIN,
) -> Tensor:
    """Call torch's `scaled_dot_product_attention`; note its kernel and the reasons against a faster one."""
    if shaping.sink is not None:
        scale, width = 1 / math.sqrt(q.shape[-1]) if scale is None else scale, v.shape[-1]
        q, k, v = with_sink_key(q, k, v, scale, shaping)
        if allowed is not None:
            allowed = F.pad(allowed, (1, 0), value=True if allowed.dtype == torch.bool else 0.0)
        if is_causal:  # a query in front too, which sees the sink alone
            q = F.pad(q, (0, 0, 1, 0))
        out = sdpa(q, k, v, allowed, is_causal, dropout, scale, reasons)
        return out[:, :, int(is_causal) :, :width]
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


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    *,
    dropout: float = 0.0,
    scale: float | None = None,
    shaping: Shaping = PLAIN,
) -> Tensor:
    """Return softmax(Q K^T scale + bias) V over the keys that each query may see: (B, H, N, values' width).

    q (B, H, N, K) of `seq`, already rotated; k (B, H', M, K), v (B, H', M, any width) of `k_seq`, with H' dividing H.

    visibility: the keys that the mixer hides; a window and a strict order are for self-attention (over a cache too),
        not for cross-attention
    dropout: rate on the weights; pass 0 outside training
    scale: None is 1 / sqrt(K)
    shaping: a cap on the scores, and a sink

    Raises UserError if a kernel that was chosen by name cannot serve.
    """
    # A norm on queries and keys may have left autocast's type; that of the values is the one in force.
    q, k = q.to(v.dtype), k.to(v.dtype)
    if maps.listening():
        rule = partial(reference.weights, shaping=shaping)
        maps.note(q, k, v, seq, k_seq, visibility, scale, rule, sink=shaping.sink is not None)
    if ring.MEMO_KEY in seq.memo:
        ring.check(dropout, whole=k_seq is seq)
        kernel.note("ring", ["trainer.strategy=context"])
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        assert shaping.forget is None, "the ring is for attention and windowed_attention"
        return ring.ring_attention(q, k, v, seq, visibility, scale, shaping)
    named = kernel.selected()
    if named in ("eager", "online"):
        kernel.note(named, [f"trainer.attention={named}"])
    if named == "eager":
        return reference.eager(q, k, v, seq, k_seq, visibility, scale, dropout, shaping)
    if named == "online":
        kernel.refuse(named, kernel.layer(), online.refusal(dropout, torch.compiler.is_compiling(), shaping))
        return online.online(q, k, v, seq, k_seq, visibility, scale, shaping=shaping)
    if shaping.reasons:
        if named == "sdpa":
            kernel.refuse(named, kernel.layer(), f"{shaping.reasons[0]}, between the products and the softmax")
        refused = _against_flex(q, seq, k_seq, max(k.shape[-1], v.shape[-1]), dropout) or _not_worth_it(q, k)
        if refused is not None:
            kernel.note("eager", [*mask.reasons(seq, k_seq, visibility), *shaping.reasons, refused])
            return reference.eager(q, k, v, seq, k_seq, visibility, scale, dropout, shaping)
    width = v.shape[-1]
    if width != k.shape[-1]:
        # Fused kernels take one width. Zero channels add nothing to a score; those of the values are cut off again.
        scale = 1 / math.sqrt(k.shape[-1]) if scale is None else scale
        q, k, v = (F.pad(x, (0, max(width, k.shape[-1]) - x.shape[-1])) for x in (q, k, v))
    refused = _against_flex(q, seq, k_seq, q.shape[-1], dropout)
    if shaping.reasons:
        kernel.note("flex", [*mask.reasons(seq, k_seq, visibility), *shaping.reasons])
        blocks = shared_block_mask(seq, k_seq, visibility, len(q))
        return flex(q, k, v, seq, k_seq, visibility, scale, blocks, shaping=shaping)[..., :width]
    if named != "flex" and mask.strict_by_shift(seq, k_seq, visibility):
        return shifted(q, k, v, k_seq is seq, dropout, scale, shaping)[..., :width]
    reasons = mask.reasons(seq, k_seq, visibility)
    if not reasons and (named != "flex" or len(seq) == 1):
        return sdpa(q, k, v, None, visibility.causal and k_seq is seq, dropout, scale, reasons, shaping)[..., :width]
    refused = refused or _not_worth_it(q, k)
    if refused is None:
        kernel.note("flex", reasons)
        blocks = shared_block_mask(seq, k_seq, visibility, len(q))
        return flex(q, k, v, seq, k_seq, visibility, scale, blocks, shaping=shaping)[..., :width]
    allowed, blind = shared_dense_mask(seq, k_seq, visibility, q.shape[1])
    if allowed is not None and allowed.is_floating_point():
        allowed = allowed.to(q.dtype)
    out = sdpa(q, k, v, allowed, False, dropout, scale, [*reasons, refused], shaping)[..., :width]
    if blind is None:
        return out
    return out.masked_fill(blind, 0.0)


def _against_flex(q: Tensor, seq: Seq, k_seq: Seq, width: int, dropout: float) -> str | None:
    """Return the reason why FlexAttention cannot serve these queries. Raises UserError if it was chosen by name."""
    if kernel.selected() == "sdpa":
        return "trainer.attention=sdpa"
    refused = refusal(q.device.type, q.dtype, width, dropout) or refusal_of_scheme(_added(seq, k_seq))
    if kernel.selected() == "flex":
        kernel.refuse("flex", kernel.layer(), refused)
    return refused


def _added(seq: Seq, k_seq: Seq) -> Position | None:
    """Return the position scheme, if it adds to the scores of these queries and keys."""
    return mask.scheme(seq, k_seq, "bias") or mask.scheme(seq, k_seq, "relate")


def _not_worth_it(q: Tensor, k: Tensor) -> str | None:
    """Return the reason why FlexAttention is not taken though it could serve; None if it was chosen by name."""
    if kernel.selected() == "flex":
        return None
    return not_worth_it(q, k)


def prepare(
    seq: Seq,
    visibility: Visibility,
    heads: int,
    head_dim: int,
    like: Tensor,
    dropout: float = 0.0,
    *,
    k_seq: Seq | None = None,
    shaping: Shaping = PLAIN,
) -> None:
    """Compute the masks once, for all layers of one forward pass over `seq`.

    This changes speed only: `attend` computes a missing mask, but inside a compiled block it cannot keep it.

    like: x (B, N, D), for its batch size, device and type; head_dim: the larger width of keys and values
    k_seq: the facts of the keys, if they are kept in the memo of `seq` under their own "name"
    """
    k_seq = seq if k_seq is None else k_seq
    named = kernel.selected()
    if named in ("eager", "online") or ring.MEMO_KEY in seq.memo:
        return
    refused = refusal(like.device.type, like.dtype, head_dim, dropout) or refusal_of_scheme(_added(seq, k_seq))
    serves = refused is None
    if named == "flex" and serves:
        shared_block_mask(seq, k_seq, visibility, len(like))
        return
    serves = serves and min(len(seq), len(k_seq)) >= FEWEST
    if shaping.reasons:
        if serves:
            shared_block_mask(seq, k_seq, visibility, len(like))
        return
    if not mask.reasons(seq, k_seq, visibility) or mask.strict_by_shift(seq, k_seq, visibility):
        return
    if named == "auto" and serves:
        shared_block_mask(seq, k_seq, visibility, len(like))
    else:
        shared_dense_mask(seq, k_seq, visibility, heads)


def shared_block_mask(seq: Seq, k_seq: Seq, visibility: Visibility, batch: int) -> Any:
    """Return FlexAttention's mask, from the memo if it is there: the layers of one forward pass share it."""
    return _memoised("blocks", 0, seq, k_seq, visibility, lambda: block_mask(seq, k_seq, visibility, batch))


def shared_dense_mask(seq: Seq, k_seq: Seq, visibility: Visibility, heads: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask of scaled_dot_product_attention and the blind queries, from the memo if they are there."""
    return _memoised("dense", heads, seq, k_seq, visibility, lambda: mask.dense(seq, k_seq, visibility, heads))


def _memoised(kind: str, heads: int, seq: Seq, k_seq: Seq, visibility: Visibility, make: Callable[[], Mask]) -> Mask:
    """Return the result of `make`, kept in the memo of the queries if the keys are the same in all layers."""
    name = "self" if k_seq is seq else k_seq.memo.get("name")
    if name is None or (k_seq is not seq and seq.memo.get(name) is not k_seq):
        return make()
    key = (kind, heads, visibility, name)
    if key in seq.memo:
        kept: Mask = seq.memo[key]
        return kept
    result = make()
    if not torch.compiler.is_compiling():
        seq.memo[key] = result
    return result
