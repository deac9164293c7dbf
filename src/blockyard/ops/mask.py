"""Who sees whom, and what a position scheme adds to it: the only mask code of the project.

    see(q, k) =  index[k] <= index[q]                      where the model is causal
             and valid[k]                                  where rows are padded
             and (k is prefix or segment[q] == segment[k]) where rows are packed
             and (|index[q] - index[k]| < window or q is prefix or k is prefix)   where there is a window
             and index[k] != index[q]                      where it is strict

The same lines make a whole table for `scaled_dot_product_attention` and one entry inside a
FlexAttention function: they work elementwise over shapes that broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Position, Seq

OTHER_KEYS = "other keys (a cache, trained ones) stand before the row"
WINDOWED = "attention is windowed"
STRICT = "a token does not see itself"


def scheme(seq: Seq, k_seq: Seq, hook: str) -> Position | None:
    """The position scheme if it acts on `hook` and both rows live in its coordinates, else None."""
    position = seq.position
    if position is None or k_seq.position is not position or hook not in position.acts_on:
        return None
    return position


def reasons(seq: Seq, k_seq: Seq, causal: bool, window: int | None = None, strict: bool = False) -> list[str]:
    """Why a kernel that knows only "everything" and "causal" is not enough; empty where it is."""
    found = []
    if scheme(seq, k_seq, "bias") is not None:
        found.append("a position bias is added to the scores")
    if k_seq.valid is not None:
        found.append("rows are padded")
    if (seq.segment is None) != (k_seq.segment is None):
        raise ValueError("segments are given for only one of queries and keys; give both or neither")
    if k_seq.segment is not None:
        found.append("rows hold several segments")
    if causal and not _plain_causal(seq, k_seq):
        found.append(OTHER_KEYS)
    if window is not None and not (len(seq) == 1 and k_seq.memo.get("window", window + 1) <= window):
        found.append(WINDOWED)
    if strict:
        found.append(STRICT)
    return found


def shifts(seq: Seq, k_seq: Seq, causal: bool, window: int | None) -> bool:
    """Whether leaving out the token itself comes to leaving out the last key, and a first query that sees nothing."""
    return causal and _plain_causal(seq, k_seq) and not reasons(seq, k_seq, causal, window)


def _plain_causal(seq: Seq, k_seq: Seq) -> bool:
    """Whether the order of rows says it all: the same row, or one query after all keys."""
    return k_seq is seq or (len(seq) == 1 and k_seq.memo.get("ends_with") is seq)


def visible(
    causal: bool,
    num_prefix: int,
    q_index: Tensor,
    k_index: Tensor,
    k_place: Tensor,
    k_valid: Tensor | None,
    q_segment: Tensor | None,
    k_segment: Tensor | None,
    window: int | None = None,
    strict: bool = False,
    q_prefix: Tensor | None = None,
) -> Tensor:
    """Whether a query sees a key, elementwise; `k_place` is the key's place in the row, from 0.

    `window` counts the token itself; `q_prefix` says whether a query is a prefix token, which no window holds.
    """
    see = (k_index <= q_index) if causal else (k_index >= k_index) & (q_index >= q_index)
    if k_valid is not None:
        see = see & k_valid
    if k_segment is not None:
        see = see & ((k_place < num_prefix) | (q_segment == k_segment))
    if window is not None:
        near = (q_index - k_index < window) & (k_index - q_index < window) | (k_place < num_prefix)
        see = see & (near if q_prefix is None else near | q_prefix)
    if strict:
        see = see & (k_index != q_index)
    return see


def table(seq: Seq, k_seq: Seq, causal: bool, window: int | None = None, strict: bool = False) -> Tensor | None:
    """Who sees whom: (B|1, 1, N, M) bool, or None where every query sees every key."""
    if everything(k_seq, causal, window, strict):
        return None
    q_place = torch.arange(len(seq), device=seq.index.device)
    k_place = torch.arange(len(k_seq), device=k_seq.index.device)
    return visible(
        causal,
        k_seq.num_prefix,
        seq.index[None, None, :, None],
        k_seq.index[None, None, None, :],
        k_place[None, None, None, :],
        None if k_seq.valid is None else k_seq.valid[:, None, None, :],
        None if seq.segment is None else seq.segment[:, None, :, None],
        None if k_seq.segment is None else k_seq.segment[:, None, None, :],
        window,
        strict,
        (q_place < seq.num_prefix)[None, None, :, None],
    )  # (B|1, 1, N, M)


def everything(k_seq: Seq, causal: bool, window: int | None, strict: bool) -> bool:
    """Whether every query sees every key."""
    return not (causal or strict or window is not None or k_seq.valid is not None or k_seq.segment is not None)


def bias_table(seq: Seq, k_seq: Seq, heads: int) -> Tensor | None:
    """What the position scheme adds to the scores: (B|1, H, N, M) float, zero at prefix tokens."""
    position = scheme(seq, k_seq, "bias")
    if position is None:
        return None
    head = torch.arange(heads, device=seq.index.device)[None, :, None, None]  # (1, H, 1, 1)
    q_coords = seq.coords[:, None, seq.num_prefix :, None].unbind(-1)  # A x (B|1, 1, N, 1)
    k_coords = k_seq.coords[:, None, None, k_seq.num_prefix :].unbind(-1)  # A x (B|1, 1, 1, M)
    bias = position.bias(head, q_coords, k_coords)  # (B|1, H, N - prefix, M - prefix)
    return F.pad(bias, (k_seq.num_prefix, 0, seq.num_prefix, 0))  # (B|1, H, N, M)


def dense(
    seq: Seq, k_seq: Seq, causal: bool, heads: int, window: int | None = None, strict: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """One mask for `scaled_dot_product_attention`, and the queries that see nothing.

    The mask (B|1, H|1, N, M) is bool, or float where a bias is added. A query that sees nothing
    is let to see everything, so that no softmax runs over nothing; its output must be zeroed:
    blind (B|1, 1, N, 1) bool, or None where no query can be blind.
    """
    see, bias = table(seq, k_seq, causal, window, strict), bias_table(seq, k_seq, heads)
    if see is None:
        return bias, None
    blind = ~see.any(-1, keepdim=True)  # (B|1, 1, N, 1)
    see = see | blind
    # Without padding or segments, a causal row sees at least itself or what came before.
    may_be_blind = strict or k_seq.valid is not None or k_seq.segment is not None or k_seq is not seq
    mask = see if bias is None else bias.masked_fill(~see, float("-inf"))
    return mask, blind if may_be_blind else None
