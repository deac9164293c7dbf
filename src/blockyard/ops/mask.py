"""The visibility of keys to queries, and the bias of the position scheme: the only mask code of the project.

    sees(q, k) = index[k] <= index[q] or shown[k]          if attention is causal
             and valid[k]                                  if sequences are padded
             and (k is prefix or segment[q] == segment[k]) if sequences are packed
             and (|index[q] - index[k]| < window or q is prefix or k is prefix)   if there is a window
             and chunk[q] == chunk[k] or ...prefix          if there are chunks
             and stride divides index[q] - index[k] or ...prefix           if there is a stride
             and index[k] != index[q]                      if it is strict

The same lines make a whole table for `scaled_dot_product_attention` and one entry inside a
FlexAttention function: they are elementwise over shapes that broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Position, Seq
from blockyard.ops.documents import document_starts

OTHER_KEYS = "other keys (a cache, trained ones) precede those of the sequence"
TIED = "tokens of a source see each other"
WINDOWED = "attention is windowed"
CHUNKED = "tokens see those of their own chunk"
STRICT = "a token does not see itself"
BIASED = "a position bias is added to the scores"
PADDED = "sequences are padded"
PACKED = "sequences hold several segments"


@dataclass(frozen=True)
class Visibility:
    """The keys that a mixer hides from its queries. The default hides none.

    causal: keys with a larger index than the query's
    window: keys at a distance of `window` or more in the index, so that 1 leaves the token itself. Prefix tokens are
        outside of it: they see every key, and every query sees them. None is no window
    strict: the key of the query's own index
    chunk: keys of another chunk of so many tokens than the query's; a document begins a chunk. None is no chunks.
        Prefix tokens are outside of it, as of a window
    stride: keys at a distance in the index that is no multiple of it; prefix tokens are outside of it
    """

    causal: bool = False
    window: int | None = None
    strict: bool = False
    chunk: int | None = None
    stride: int = 1

    @property
    def near(self) -> bool:
        """Return whether keys are hidden by their distance or their chunk."""
        return self.window is not None or self.chunk is not None or self.stride > 1

    @property
    def unrestricted(self) -> bool:
        """Return whether nothing is hidden."""
        return not self.causal and not self.strict and not self.near


FULL = Visibility()
CAUSAL = Visibility(causal=True)


def scheme(seq: Seq, k_seq: Seq, hook: str) -> Position | None:
    """Return the position scheme if it acts on `hook` and both sequences have its coordinates, else None."""
    position = seq.position
    if position is None or k_seq.position is not position or hook not in position.acts_on:
        return None
    return position


def reasons(seq: Seq, k_seq: Seq, visibility: Visibility) -> list[str]:
    """Return the reasons why a kernel with only "full" and "causal" is not enough; empty if it is."""
    reasons = []
    if scheme(seq, k_seq, "bias") is not None or scheme(seq, k_seq, "relate") is not None:
        reasons.append(BIASED)
    if k_seq.valid is not None:
        reasons.append(PADDED)
    if (seq.segment is None) != (k_seq.segment is None):
        raise ValueError("segments are given for only one of queries and keys; give both or neither")
    if k_seq.segment is not None:
        reasons.append(PACKED)
    if visibility.causal and not ordered_by_row(seq, k_seq):
        reasons.append(TIED if k_seq is seq else OTHER_KEYS)
    window = visibility.window
    if visibility.chunk is not None:
        reasons.append(CHUNKED)
    elif visibility.near:
        kept = len(seq) == 1 and visibility.stride == 1 and k_seq.memo.get("window")
        if not kept or (window is not None and kept > window):
            reasons.append(WINDOWED)
    if visibility.strict:
        reasons.append(STRICT)
    return reasons


def strict_by_shift(seq: Seq, k_seq: Seq, visibility: Visibility) -> bool:
    """Return whether strict attention is plain causal attention without the last key and the first query.

    The first query then sees nothing.
    """
    if not (visibility.strict and visibility.causal and ordered_by_row(seq, k_seq)):
        return False
    return not reasons(seq, k_seq, replace(visibility, strict=False))


def ordered_by_row(seq: Seq, k_seq: Seq) -> bool:
    """Return whether row numbers give the order of tokens: the same sequence, or one query after all keys."""
    if k_seq is seq:
        return not seq.ties and seq.shown is None  # tokens of a source see each other, wherever they stand
    last = k_seq.memo.get("ends_with")
    # The visits of a block have a `Seq` each, of the same tokens, and share its memo.
    return len(seq) == 1 and last is not None and (last is seq or last.memo is seq.memo)


def visible(
    visibility: Visibility,
    num_prefix: int,
    q_index: Tensor,
    k_index: Tensor,
    k_row: Tensor,
    k_valid: Tensor | None,
    q_segment: Tensor | None,
    k_segment: Tensor | None,
    q_prefix: Tensor | None = None,
    k_shown: Tensor | None = None,
    q_chunk: Tensor | None = None,
    k_chunk: Tensor | None = None,
) -> Tensor:
    """Return whether a query sees a key, elementwise.

    num_prefix: prefix tokens among the keys; k_row: the key's row number, from 0
    q_prefix: whether a query is a prefix token; None if none is
    k_shown: whether a key is seen by earlier queries too (`Seq.shown`); None if none is
    q_chunk, k_chunk: numbers from `chunk_numbers`; None without chunks
    """
    sees = (k_index <= q_index) if visibility.causal else _everywhere(q_index, k_index)
    if visibility.causal and k_shown is not None:
        sees = sees | k_shown
    if k_valid is not None:
        sees = sees & k_valid
    if k_segment is not None:
        sees = sees & ((k_row < num_prefix) | (q_segment == k_segment))
    if visibility.near:
        distance = q_index - k_index
        near = k_row >= 0
        if visibility.window is not None:
            near = (distance < visibility.window) & (-distance < visibility.window)
        if visibility.stride > 1:
            near = near & (distance % visibility.stride == 0)
        if q_chunk is not None and k_chunk is not None:
            near = near & (q_chunk == k_chunk)
        near = near | (k_row < num_prefix)
        if q_prefix is not None:
            near = near | q_prefix
        sees = sees & near
    if visibility.strict:
        sees = sees & (k_index != q_index)
    return sees


def _everywhere(q_index: Tensor, k_index: Tensor) -> Tensor:
    """Return True in the broadcast shape, from the indices: inside FlexAttention there are no shapes."""
    return (k_index >= k_index) & (q_index >= q_index)


Chunks = tuple[Tensor, Tensor]


def chunk_numbers(seq: Seq, k_seq: Seq, visibility: Visibility) -> Chunks | None:
    """Return the chunk of each query (B|1, N) and key (B|1, M), counted from the start of a document.

    Raises ValueError for documents behind a cache, which may have dropped their first tokens.
    """
    if visibility.chunk is None:
        return None
    if k_seq.segment is None:
        prefix = k_seq.num_prefix
        first = k_seq.index[prefix - 1] + 1 if prefix else 0  # tokens of a source share an index
        q_numbers = (seq.index - first) // visibility.chunk  # (N,)
        k_numbers = (k_seq.index - first) // visibility.chunk  # (M,)
        return q_numbers[None], k_numbers[None]
    if k_seq is not seq:
        raise ValueError("chunks count from the start of a document, which a cache may have dropped; leave segment out")
    start = k_seq.index[document_starts(k_seq.segment, k_seq.num_prefix)]  # (B, M)
    numbers = (k_seq.index - start) // visibility.chunk
    return numbers, numbers


def table(seq: Seq, k_seq: Seq, visibility: Visibility, chunks: Chunks | None = None) -> Tensor | None:
    """Return the visibility of keys to queries: (B|1, 1, N, M) bool, or None if every query sees every key.

    chunks: of parts of a sequence; None is `chunk_numbers`
    """
    if everything(k_seq, visibility):
        return None
    q_chunk, k_chunk = chunks or chunk_numbers(seq, k_seq, visibility) or (None, None)
    q_row = torch.arange(len(seq), device=seq.index.device)
    k_row = torch.arange(len(k_seq), device=k_seq.index.device)
    return visible(
        visibility,
        k_seq.num_prefix,
        seq.index[None, None, :, None],
        k_seq.index[None, None, None, :],
        k_row[None, None, None, :],
        None if k_seq.valid is None else k_seq.valid[:, None, None, :],
        None if seq.segment is None else seq.segment[:, None, :, None],
        None if k_seq.segment is None else k_seq.segment[:, None, None, :],
        (q_row < seq.num_prefix)[None, None, :, None],
        None if k_seq.shown is None else k_seq.shown[:, None, None, :],
        None if q_chunk is None else q_chunk[:, None, :, None],
        None if k_chunk is None else k_chunk[:, None, None, :],
    )  # (B|1, 1, N, M)


def count(seq: Seq, k_seq: Seq, visibility: Visibility) -> Tensor:
    """Return the number of keys that each query sees: (B|1, 1, N, 1) int64. A plain sequence needs no table."""
    plain = k_seq.valid is None and k_seq.segment is None and not visibility.strict
    if plain and visibility.causal and not visibility.near and ordered_by_row(seq, k_seq):
        if k_seq is not seq:  # one query after all keys; with shared indices, index + 1 is not the number of keys
            return torch.full_like(seq.index, len(k_seq))[None, None, :, None]
        return (seq.index + 1)[None, None, :, None]
    sees = table(seq, k_seq, visibility)
    if sees is None:
        return torch.full_like(seq.index, len(k_seq))[None, None, :, None]
    return sees.sum(-1, keepdim=True)


def everything(k_seq: Seq, visibility: Visibility) -> bool:
    """Return whether every query sees every key."""
    return visibility.unrestricted and k_seq.valid is None and k_seq.segment is None


def bias_table(seq: Seq, k_seq: Seq, heads: int) -> Tensor | None:
    """Return the position bias on the scores: (B|1, H, N, M) float. The part by coordinates is zero at the prefix."""
    related = relation_table(seq, k_seq, heads)
    position = scheme(seq, k_seq, "bias")
    if position is None:
        return related
    head = torch.arange(heads, device=seq.index.device)[None, :, None, None]  # (1, H, 1, 1)
    q_coords = seq.coords[:, None, seq.num_prefix :, None].unbind(-1)  # A x (B|1, 1, N, 1)
    k_coords = k_seq.coords[:, None, None, k_seq.num_prefix :].unbind(-1)  # A x (B|1, 1, 1, M)
    bias = position.bias(head, q_coords, k_coords)  # (B|1, H, N - prefix, M - prefix)
    padded = F.pad(bias, (k_seq.num_prefix, 0, seq.num_prefix, 0))  # (B|1, H, N, M)
    return padded if related is None else padded + related


def relation_table(seq: Seq, k_seq: Seq, heads: int) -> Tensor | None:
    """Return the position bias by facts of pairs: (B, H, N, M) float; None without one."""
    position = scheme(seq, k_seq, "relate")
    if position is None:
        return None
    assert k_seq.pairs is not None
    head = torch.arange(heads, device=seq.index.device)[None, :, None, None]  # (1, H, 1, 1)
    related = position.relate(head, tuple(pair[:, None] for pair in k_seq.pairs))  # (B, H, N, M)
    if not (seq.num_prefix or k_seq.num_prefix):
        return related
    q_row = torch.arange(len(seq), device=seq.index.device)[:, None]  # (N, 1)
    k_row = torch.arange(len(k_seq), device=seq.index.device)
    prefix = (q_row < seq.num_prefix) | (k_row < k_seq.num_prefix)  # (N, M)
    related = torch.where(prefix, position.at_prefix(head).to(related.dtype), related)
    slots = k_seq.memo.get("slots", 0)  # in front of the prefix: keys that are no tokens
    if slots:
        return related.masked_fill(k_row < slots, 0.0)
    return related


def dense(seq: Seq, k_seq: Seq, visibility: Visibility, heads: int) -> tuple[Tensor | None, Tensor | None]:
    """Return one mask for `scaled_dot_product_attention`, and the queries that see nothing.

    The mask (B|1, H|1, N, M) is bool, or float with a bias. A query that sees nothing is allowed to see everything, so
    that no softmax runs over nothing; its output must be zeroed: blind (B|1, 1, N, 1) bool, or None if no query can be
    blind.
    """
    sees = table(seq, k_seq, visibility)
    bias = bias_table(seq, k_seq, heads)
    if sees is None:
        return bias, None
    blind = ~sees.any(-1, keepdim=True)  # (B|1, 1, N, 1)
    sees = sees | blind
    # Without padding or segments, a causal query sees at least itself or an earlier token.
    may_be_blind = visibility.strict or k_seq.valid is not None or k_seq.segment is not None or k_seq is not seq
    mask = sees if bias is None else bias.masked_fill(~sees, float("-inf"))
    return mask, blind if may_be_blind else None
