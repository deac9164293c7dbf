"""Encoded pairs of texts: the source that an encoder reads and the target that a decoder writes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blockyard.contracts import Batch, TextTokenizer
from blockyard.data.files.pairs import Pair
from blockyard.data.splits.columns import ColumnSplit, Ragged

log = logging.getLogger("blockyard")


class PairSplit(ColumnSplit):
    """A split of encoded pairs: the inputs are the decoder's sequences with start and end token.

    pairs: the texts themselves, which what a model writes is compared with
    """

    inputs: Ragged
    source: Ragged

    def __init__(self, source: Ragged, target: Ragged, bytes_per_token: float, pairs: Sequence[Pair]) -> None:
        super().__init__(target, source=source)
        self.bytes_per_token, self.pairs = bytes_per_token, pairs


class JoinedSplit(ColumnSplit):
    """A split of encoded pairs in one sequence each: the source, the start token, the target and the end token.

    pairs: the texts, as in `PairSplit`
    """

    def __init__(self, split: PairSplit) -> None:
        both = zip(split.source.sequences(), split.inputs.sequences(), strict=True)
        super().__init__(Ragged.of([[*source, *target] for source, target in both]))
        self.read = split.source.lengths  # (n,) tokens of each source
        self.bytes_per_token, self.pairs = split.bytes_per_token, split.pairs

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, N + 1), and target (B, N + 1): the same from the token behind the start token on."""
        batch = super().batch(order, key)
        prompt = torch.arange(batch.inputs.shape[1]) <= self.read[order][:, None]  # (B, N + 1)
        return replace(batch, target=batch.inputs.masked_fill(prompt, Batch.ignore))


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
    return PairSplit(Ragged.of(sources), Ragged.of(targets), num_bytes / num_tokens, kept)


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
