"""Encoded pairs of texts: the source that an encoder reads and the target that a decoder writes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, TextTokenizer
from blockyard.data.files.pairs import Pair

log = logging.getLogger("blockyard")


class RaggedSequences(NamedTuple):
    """Token sequences of any length in one stream. stream: (T,) int32; start, lengths: (n,) int64."""

    stream: Tensor
    start: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> RaggedSequences:
        """Concatenate lists of token ids."""
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        stream = torch.tensor([token_id for sequence in sequences for token_id in sequence], dtype=torch.int32)
        return cls(stream, lengths.cumsum(0) - lengths, lengths)

    def sequences(self) -> list[list[int]]:
        """Return the sequences as lists of token ids."""
        stream, bounds = self.stream.tolist(), zip(self.start.tolist(), self.lengths.tolist(), strict=True)
        return [stream[start : start + length] for start, length in bounds]

    def padded(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sequences `order` (B,) as int64 (B, longest), padded with 0, and their lengths (B,)."""
        lengths = self.lengths[order]
        position = torch.arange(int(lengths.max()))
        index = (self.start[order][:, None] + position).clamp_max(len(self.stream) - 1)  # (B, longest)
        return self.stream[index].long().masked_fill(position >= lengths[:, None], 0), lengths


class PairSplit:
    """A split of encoded pairs: `target` holds the decoder's sequences with start and end token.

    pairs: the texts themselves, which what a model writes is compared with
    """

    def __init__(
        self, source: RaggedSequences, target: RaggedSequences, bytes_per_token: float, pairs: Sequence[Pair]
    ) -> None:
        self.source, self.target, self.bytes_per_token, self.pairs = source, target, bytes_per_token, pairs

    def __len__(self) -> int:
        return len(self.target.lengths)

    @property
    def lengths(self) -> Tensor:
        """The tokens of source and target together, (n,)."""
        return self.source.lengths + self.target.lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, N + 1): start, target, end; and source (B, M); both padded to the batch's longest."""
        inputs, lengths = self.target.padded(order)
        source, source_lengths = self.source.padded(order)
        return Batch(inputs, lengths=lengths, source=source, source_lengths=source_lengths)


class JoinedSplit:
    """A split of encoded pairs in one sequence each: the source, the start token, the target and the end token.

    pairs: the texts, as in `PairSplit`
    """

    def __init__(self, split: PairSplit) -> None:
        both = zip(split.source.sequences(), split.target.sequences(), strict=True)
        self.sequences = RaggedSequences.of([[*source, *target] for source, target in both])
        self.read = split.source.lengths  # (n,) tokens of each source
        self.bytes_per_token, self.pairs = split.bytes_per_token, split.pairs

    def __len__(self) -> int:
        return len(self.read)

    @property
    def lengths(self) -> Tensor:
        """The tokens of each sequence, (n,)."""
        return self.sequences.lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, N + 1), and target (B, N + 1): the same from the token behind the start token on."""
        inputs, lengths = self.sequences.padded(order)
        prompt = torch.arange(inputs.shape[1]) <= self.read[order][:, None]  # (B, N + 1)
        return Batch(inputs, inputs.masked_fill(prompt, Batch.ignore), lengths=lengths)


def encode(
    name: str,
    pairs: Sequence[Pair],
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    ends: tuple[int, int],
    contexts: tuple[int, int],
) -> PairSplit:
    """Encode the split `name`; pairs with an empty or an overlong side are dropped with a warning.

    tokenizers: of the source and of the target
    ends: ids of the start and the end token; contexts: maximum tokens of a source, and of a target with its end
    Raises ValueError if no pair is left.
    """
    start, end = ends
    sources, targets, kept, num_bytes, num_tokens = [], [], [], 0, 0
    for source, target in pairs:
        source_ids, target_ids = tokenizers[0].encode(source), tokenizers[1].encode(target)
        if source_ids and target_ids and len(source_ids) <= contexts[0] and len(target_ids) + 1 <= contexts[1]:
            sources.append(source_ids)
            targets.append([start, *target_ids, end])
            kept.append((source, target))
            num_bytes, num_tokens = num_bytes + len(target.encode()), num_tokens + len(target_ids) + 1
    dropped = len(pairs) - len(sources)
    if not sources:
        raise ValueError(
            f"none of the {len(pairs)} pairs of the {name} split fits data.source_context={contexts[0]} and "
            f"data.context={contexts[1]} tokens; raise them, or use a tokenizer with longer tokens"
        )
    if dropped:
        log.warning(
            "%d of %d %s pairs are left out: empty, or longer than data.source_context or data.context",
            dropped,
            len(pairs),
            name,
        )
    return PairSplit(RaggedSequences.of(sources), RaggedSequences.of(targets), num_bytes / num_tokens, kept)


def disjoint(splits: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Remove duplicates, and from each split every pair that shares a side with a later split.

    In the order train, validation, test, the test split keeps all of its pairs.
    """
    sources: set[str] = set()
    targets: set[str] = set()
    result: list[list[Pair]] = []
    for split in reversed(splits):
        kept = [pair for pair in dict.fromkeys(split) if pair[0] not in sources and pair[1] not in targets]
        result.append(kept)
        for source, target in kept:
            sources.add(source)
            targets.add(target)
    return result[::-1]
