"""Scores of attention for a chunk of keys at a time, with the masks and biases of that chunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blockyard.contracts import Seq
from blockyard.ops.mask import bias_table, ordered_by_row, table
from blockyard.ops.visibility import Visibility

CHUNK = 128  # keys
NEVER = float("-inf")


@dataclass(frozen=True)
class Call:
    """The arguments of a call that are no tensors with gradients of their own.

    first: of each chunk of keys the first query that may see one of them, where that is known; see `ops.ring`
    """

    seq: Seq
    k_seq: Seq
    visibility: Visibility
    scale: float
    chunk: int
    first: tuple[int, ...] | None = None

    def parts(self) -> Iterator[tuple[slice, slice]]:
        """Yields the queries and the keys of each chunk; of a plain causal sequence only the queries that see them."""
        triangle = self.visibility.causal and self.k_seq is self.seq and ordered_by_row(self.seq, self.k_seq)
        for number, start in enumerate(range(0, len(self.k_seq), self.chunk)):
            first = self.first[number] if self.first is not None else start if triangle else 0
            if first < len(self.seq):
                yield slice(first, len(self.seq)), slice(start, start + self.chunk)

    def facts(self, queries: slice, keys: slice) -> tuple[Seq, Seq]:
        """The facts of the queries and keys of a chunk."""
        pairs = self.k_seq.pairs
        part = None if pairs is None else tuple(pair[:, queries, keys] for pair in pairs)
        return _part(self.seq, queries, None), _part(self.k_seq, keys, part)

    def scores(self, q: Tensor, k: Tensor, queries: slice, keys: slice) -> Tensor:
        """Scores of a chunk with the bias, -inf where a query does not see a key: (B, H, n, chunk)."""
        seq, k_seq = self.facts(queries, keys)
        raw = at_least_float32(q[:, :, queries] @ grouped(k[:, :, keys], q).transpose(-1, -2)) * self.scale
        bias = bias_table(seq, k_seq, q.shape[1])
        if bias is not None:
            raw = raw + bias
        sees = table(seq, k_seq, self.visibility)
        return raw if sees is None else raw.masked_fill(~sees, NEVER)


def _part(seq: Seq, tokens: slice, pairs: tuple[Tensor, ...] | None) -> Seq:
    """The facts of some rows of a sequence."""
    start, end, _ = tokens.indices(len(seq))
    return replace(
        seq,
        index=seq.index[tokens],
        coords=seq.coords[:, tokens],
        valid=None if seq.valid is None else seq.valid[:, tokens],
        segment=None if seq.segment is None else seq.segment[:, tokens],
        num_prefix=min(max(seq.num_prefix - start, 0), end - start),
        grid=None,
        features=None,
        pairs=pairs,
        shown=None if seq.shown is None else seq.shown[:, tokens],
        memo={},
    )


def at_least_float32(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def grouped(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values (B, H', m, K) repeated for the heads that read them: (B, H, m, K)."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)
