"""Splits of images with a caption each, encoded once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.images import levels_to_floats
from blockyard.data.files.pairs import Pair
from blockyard.data.splits.pairs import RaggedSequences
from blockyard.errors import UserError

log = logging.getLogger("blockyard")


class CaptionedSplit:
    """A split of images in memory with a caption each. images: uint8 (n, C, size, size)."""

    def __init__(
        self,
        images: Tensor,
        targets: RaggedSequences,
        pairs: Sequence[Pair],
        *,
        blank: bool,
    ) -> None:
        self.images, self.targets, self.pairs, self.blank = images, targets, pairs, blank

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, N + 1): start, caption, end; lengths; and source float32 (B, C, size, size)."""
        inputs, lengths = self.targets.padded(order)
        source = levels_to_floats(self.images[order])
        return Batch(inputs, lengths=lengths, source=torch.zeros_like(source) if self.blank else source)


def caption_parts(
    parts: Sequence[Tensor],
    images: Tensor,
    names: Sequence[str],
    captions: Sequence[str],
    spec: DataSpec,
    tokenizer: Tokenizer,
    *,
    blank: bool,
) -> Splits:
    """Return the splits; fit the tokenizer on the captions of training if it has no state. Long ones are left out.

    parts: the images of each split; images: uint8 (n, C, size, size) of all; names, captions: n, of each
    """
    if not isinstance(tokenizer, TextTokenizer):
        raise ValueError(f"text data needs a text tokenizer, not {type(tokenizer).__name__}")
    texts = [[captions[i] for i in part.tolist()] for part in parts]
    if not tokenizer.state():
        tokenizer.fit(texts[0])
    tokens = tokenizer.spec(spec)
    if tokens.start is None or tokens.end is None:
        raise ValueError(f"{type(tokenizer).__name__} has no start and end token; see TokenSpec.start")
    splits: list[CaptionedSplit] = []
    for name, part, own in zip(Splits._fields, parts, texts, strict=True):
        pairs = [(names[i], text) for i, text in zip(part.tolist(), own, strict=True)]
        kept, targets = _encode(name, own, tokenizer, (tokens.start, tokens.end), spec.shape[0])
        chosen = [pairs[i] for i in kept]
        splits.append(CaptionedSplit(images[part[torch.tensor(kept)]], targets, chosen, blank=blank))
    return Splits(*splits)


def _encode(
    name: str, texts: list[str], tokenizer: TextTokenizer, ends: tuple[int, int], context: int
) -> tuple[list[int], RaggedSequences]:
    """Return the captions that are short enough, by index, and their token ids with start and end token."""
    encoded = [[ends[0], *tokenizer.encode(text), ends[1]] for text in texts]
    kept = [number for number, ids in enumerate(encoded) if len(ids) <= context + 1]
    unknown = sum(tokenizer.decode(encoded[i][1:-1]) != texts[i] for i in kept)
    if not kept:
        raise UserError(f"data.context={context}: no {name} caption has so few tokens; raise it")
    if len(kept) < len(texts):
        dropped = len(texts) - len(kept)
        log.warning("%d of %d %s captions are left out: longer than data.context", dropped, len(texts), name)
    if unknown:
        log.warning(
            "%d of %d %s captions have words that training lacks, which cannot be written", unknown, len(kept), name
        )
    return kept, RaggedSequences.of([encoded[i] for i in kept])
