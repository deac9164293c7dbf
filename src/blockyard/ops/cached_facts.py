"""The facts of cached tokens: of some of them, of some sequences, and followed by new tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from blockyard.contracts import Seq


def cut(x: Tensor, dim: int, start: int, count: int) -> Tensor:
    """x without `count` entries from `start` on; a copy, so that the memory of the rest is freed."""
    if count == 0:
        return x
    rest = x.shape[dim] - start - count
    return torch.cat([x.narrow(dim, 0, start), x.narrow(dim, start + count, rest)], dim=dim)


def cut_facts(seq: Seq, count: int) -> Seq:
    """The facts without the first `count` tokens after the prefix."""
    p = seq.num_prefix
    return Seq(
        index=cut(seq.index, 0, p, count),
        coords=cut(seq.coords, 1, p, count),
        valid=None if seq.valid is None else cut(seq.valid, 1, p, count),
        segment=None if seq.segment is None else cut(seq.segment, 1, p, count),
        num_prefix=p,
        position=seq.position,
    )


def without_last(seq: Seq, count: int) -> Seq:
    """The facts without the last `count` tokens."""
    end = len(seq) - count
    return replace(
        seq,
        index=seq.index[:end],
        coords=seq.coords[:, :end],
        valid=None if seq.valid is None else seq.valid[:, :end],
        segment=None if seq.segment is None else seq.segment[:, :end],
        grid=None,
        features=None,
        pairs=None,
        shown=None,  # later tokens see all of these anyway
        memo={},
    )


def select(seq: Seq, order: Tensor) -> Seq:
    """The facts of the sequences `order`."""
    return Seq(
        index=seq.index,
        coords=seq.coords if seq.coords.shape[0] == 1 else seq.coords.index_select(0, order),
        valid=None if seq.valid is None else seq.valid.index_select(0, order),
        segment=None if seq.segment is None else seq.segment.index_select(0, order),
        num_prefix=seq.num_prefix,
        position=seq.position,
    )


def follow(past: Seq, new: Seq, batch_size: int) -> Seq:
    """The facts of `past` followed by `new`; layers that keep the same past share them.

    `ends_with` tells the masks that no key is later than `new`.
    """
    shared = new.memo.get("following")
    if shared is not None and shared[0] is past and shared[1] == batch_size:
        joined: Seq = shared[2]
        return joined
    batch = max(past.coords.shape[0], new.coords.shape[0])
    coords = [s.coords.expand(batch, -1, -1) for s in (past, new)]
    joined = Seq(
        index=torch.cat([past.index, new.index]),  # (M,)
        coords=torch.cat(coords, dim=1),  # (B|1, M, A)
        valid=_join_valid(past, new, batch_size),
        segment=_join_segments(past, new),
        num_prefix=past.num_prefix,
        position=new.position,
    )
    joined.memo["ends_with"] = new
    new.memo["following"] = (past, batch_size, joined)
    return joined


def _join_valid(past: Seq, new: Seq, batch_size: int) -> Tensor | None:
    """Which tokens are real, (B, M) bool; None where all are."""
    if past.valid is None and new.valid is None:
        return None
    parts = []
    for seq in (past, new):
        all_real = torch.ones((batch_size, len(seq)), dtype=torch.bool, device=seq.index.device)
        parts.append(all_real if seq.valid is None else seq.valid)
    return torch.cat(parts, dim=1)


def _join_segments(past: Seq, new: Seq) -> Tensor | None:
    """The segment of each token, (B, M) int64; None where there is one. Raises ValueError where one side has none."""
    if past.segment is None and new.segment is None:
        return None
    if past.segment is None or new.segment is None:
        raise ValueError("segment is given for only one of past and new tokens; give it always or never")
    return torch.cat([past.segment, new.segment], dim=1)
