"""Cuts every sequence among the processes of a ring, and passes tensors on from one to the next.

2 processes, causal     chunk 1  process 0   *          A token of the last chunk reads four times as many keys as
                        chunk 2  process 1   * *        one of the first. With a chunk from the front and one from
                        chunk 3  process 1   * * *      the back, all processes have equal work.
                        chunk 4  process 0   * * * *
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from blockyard.contracts import Batch, Seq

KEY = "ring"  # of the memo of a sequence that is cut


@dataclass(frozen=True)
class Ring:
    """The processes that share every sequence.

    group: of torch.distributed, for the ring alone, so that nothing else comes between
    """

    rank: int
    world: int
    group: Any

    def tokens(self, length: int, rank: int) -> Tensor:
        """The tokens of a process, (n,) int64 and increasing: one chunk of 2 `world` from the front, one from the back.

        Raises ValueError where a process would get none in a chunk.
        """
        chunks = 2 * self.world
        if length < chunks:
            raise ValueError(f"{length} tokens cannot be cut among {self.world} processes; use at least {chunks}")
        bounds = [length * chunk // chunks for chunk in range(chunks + 1)]
        front, back = rank, chunks - 1 - rank
        return torch.cat([torch.arange(bounds[each], bounds[each + 1]) for each in (front, back)])

    def cut(self, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """The tokens of this process: x (B, N, D) -> (B, n, D), and their facts, with those of the other processes'.

        Raises ValueError for sequences with padding, segments, prefix tokens or facts of pairs.
        """
        if seq.num_prefix or any(each is not None for each in (seq.valid, seq.segment, seq.pairs, seq.shown)):
            raise ValueError("only whole sequences of one length, without a prefix, are cut among processes")
        parts = [_part(seq, self.tokens(len(seq), rank).to(x.device)) for rank in range(self.world)]
        own = parts[self.rank]
        own.memo[KEY] = (self, parts)
        return x[:, self.tokens(len(seq), self.rank).to(x.device)], own

    def targets(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """The targets (B, n) of this process's tokens out of (B, N), and the weight of their mean loss.

        The mean over processes of weighted losses is the mean loss over all targets that count.
        """
        own = target[:, self.tokens(target.shape[1], self.rank).to(target.device)]
        return own, Batch.counted(own).sum() / Batch.counted(target).sum().clamp_min(1) * self.world

    def passed_on(self, tensors: list[Tensor], sizes: list[torch.Size]) -> tuple[list[Tensor], list[Any]]:
        """Send tensors to the next process. Returns those of the process before, of these sizes, and what to wait for.

        The received tensors are complete once `wait` of each was called.
        """
        received = [each.new_empty(size) for each, size in zip(tensors, sizes, strict=True)]
        to, source = (dist.get_global_rank(self.group, (self.rank + by) % self.world) for by in (1, -1))
        sends = [dist.P2POp(dist.isend, each.contiguous(), to, self.group) for each in tensors]
        receives = [dist.P2POp(dist.irecv, each, source, self.group) for each in received]
        return received, dist.batch_isend_irecv([*sends, *receives])


class _State:
    """The ring in force."""

    ring: Ring | None = None


@contextmanager
def sharing(ring: Ring | None) -> Iterator[None]:
    """Inside this context models cut their sequences among the processes of a ring; None changes nothing."""
    before = _State.ring
    _State.ring = ring
    try:
        yield
    finally:
        _State.ring = before


def shared(x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
    """Returns this process's part of a stream x (B, N, D), and its facts; the whole outside of `sharing`."""
    return (x, seq) if _State.ring is None else _State.ring.cut(x, seq)


def _part(seq: Seq, tokens: Tensor) -> Seq:
    """The facts of some tokens of a sequence; their indices and coordinates stay the ones in the whole."""
    features = None if seq.features is None else seq.features[:, tokens]
    return replace(seq, index=seq.index[tokens], coords=seq.coords[:, tokens], features=features, grid=None, memo={})
