"""Pairs of texts: what an encoder reads, and what a decoder writes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, TextTokenizer

log = logging.getLogger("blockyard")

Pair = tuple[str, str]  # source, target


class Rows(NamedTuple):
    """Rows of symbols of any length. stream: (T,) int32; start, lengths: (n,) int64."""

    stream: Tensor
    start: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Rows:
        """From lists of symbols."""
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        stream = torch.tensor([symbol for row in rows for symbol in row], dtype=torch.int32)
        return cls(stream, lengths.cumsum(0) - lengths, lengths)

    def padded(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """The rows `order` (B,): int64 (B, longest), 0 behind the end, and their lengths (B,)."""
        lengths = self.lengths[order]
        place = torch.arange(int(lengths.max()))
        index = (self.start[order][:, None] + place).clamp_max(len(self.stream) - 1)  # (B, longest)
        return self.stream[index].long().masked_fill(place >= lengths[:, None], 0), lengths


class Pairs:
    """Encoded pairs: `inputs` is the decoder's row with its start and end symbols, `source` the encoder's."""

    def __init__(self, source: Rows, target: Rows, bytes_per_token: float) -> None:
        self.source, self.target, self.bytes_per_token = source, target, bytes_per_token

    def __len__(self) -> int:
        return len(self.target.lengths)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs (B, N + 1) start, target, end; source (B, M); both padded to the longest of the batch."""
        inputs, lengths = self.target.padded(order)
        source, source_lengths = self.source.padded(order)
        return Batch(inputs, lengths=lengths, source=source, source_lengths=source_lengths)


def encode(
    name: str, pairs: Sequence[Pair], tokenizer: TextTokenizer, ends: tuple[int, int], contexts: tuple[int, int]
) -> Pairs:
    """A part, encoded; pairs with a side beyond its context, or an empty one, are left out with a word.

    ends: the start and the end symbol; contexts: the most tokens of a source, and of a target with its end
    Raises ValueError where nothing is left.
    """
    start, end = ends
    sources, targets, size, asked = [], [], 0, 0
    for source, target in pairs:
        read, written = tokenizer.encode(source), tokenizer.encode(target)
        if read and written and len(read) <= contexts[0] and len(written) + 1 <= contexts[1]:
            sources.append(read)
            targets.append([start, *written, end])
            size, asked = size + len(target.encode()), asked + len(written) + 1
    left_out = len(pairs) - len(sources)
    if not sources:
        raise ValueError(
            f"of the {len(pairs)} pairs of the {name} part none fits data.source_context={contexts[0]} and "
            f"data.context={contexts[1]} tokens; raise them, or take a tokenizer with longer symbols"
        )
    if left_out:
        log.warning(
            "%d of %d %s pairs are longer than data.source_context or data.context and left out",
            left_out,
            len(pairs),
            name,
        )
    return Pairs(Rows.of(sources), Rows.of(targets), size / asked)


def disjoint(parts: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Each part without what a later part holds on either side, and without its own repetitions.

    With parts in the order train, validation, test, the test part stays whole.
    """
    taken: tuple[set[str], set[str]] = (set(), set())
    kept: list[list[Pair]] = []
    for part in reversed(parts):
        own = [pair for pair in dict.fromkeys(part) if pair[0] not in taken[0] and pair[1] not in taken[1]]
        kept.append(own)
        for source, target in own:
            taken[0].add(source)
            taken[1].add(target)
    return kept[::-1]
